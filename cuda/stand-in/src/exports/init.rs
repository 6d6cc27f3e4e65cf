//! Start, version, error texts.

use core::ffi::{CStr, c_char};

use larder_cuda_abi::Code;

use crate::control::c_texts;
use crate::entry::call;
use crate::ffi::Out;

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> Code {
    call("cuInit", |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if driver.devices.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        driver.initialised = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<i32>) -> Code {
    call("cuDriverGetVersion", |driver| {
        version.give(driver.version as i32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Code, text: Out<*const c_char>) -> Code {
    call("cuGetErrorName", |_| {
        error_text(code, &text, |(name, _)| name)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: Code, text: Out<*const c_char>) -> Code {
    call("cuGetErrorString", |_| {
        error_text(code, &text, |(_, meaning)| meaning)
    })
}

fn error_text(
    code: Code,
    text: &Out<*const c_char>,
    which: impl Fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Result<(), Code> {
    text.check()?;
    match c_texts(code) {
        Some(texts) => text.give(which(texts).as_ptr()),
        None => {
            text.give(core::ptr::null())?;
            Err(Code::INVALID_VALUE)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStart() -> Code {
    call("cuProfilerStart", |driver| driver.current().map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStop() -> Code {
    call("cuProfilerStop", |driver| driver.current().map(drop))
}
