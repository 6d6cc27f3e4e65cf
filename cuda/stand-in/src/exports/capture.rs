//! Captures.

use larder_cuda_abi::constants::CAPTURE_STATUS_NONE;
use larder_cuda_abi::{Code, StreamHandle};

use crate::entry::call;
use crate::ffi::Out;

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: StreamHandle, status: Out<u32>) -> Code {
    call("cuStreamIsCapturing", |driver| {
        driver.stream(stream)?;
        status.give(CAPTURE_STATUS_NONE)
    })
}
