//! Allocations and frees, with the signatures of PyTorch, CuPy and RMM.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Once;

use crate::device::{self, Handle};
use crate::outcome::{Refusal, guard, say_once, status};
use crate::throw;

/// Allocates a block and returns its address, or 0 for a size of 0.
fn alloc(size: isize, ordinal: c_int, stream: Handle) -> Result<u64, Refusal> {
    match u64::try_from(size) {
        Ok(0) => Ok(0),
        Ok(bytes) => device::device(ordinal)?.alloc(bytes, stream),
        Err(_) => Err(Refusal::Size(size as i64)),
    }
}

/// Converts an address to a pointer to the device's memory.
pub(crate) const fn pointer(address: u64) -> *mut c_void {
    // Without provenance, since the host never dereferences device memory.
    ptr::without_provenance_mut(address as usize)
}

/// Frees a block. The signatures of frees have no room for an error.
fn free(block: *mut c_void, ordinal: c_int, stream: Handle) {
    static SAID: Once = Once::new();
    let freed = guard(|| match block.addr() as u64 {
        0 => Ok(()),
        address => device::device(ordinal)?.free(address, stream),
    });
    if let Err(refused) = freed {
        say_once(&SAID, &refused);
    }
}

/// Returns whether the first refusal is also reported on stderr.
pub(crate) fn says() -> bool {
    std::env::var_os("LARDER_CUDA_SAY").is_some_and(|said| said == "1")
}

/// Allocates a block, and reports the first refusal on stderr if this is demanded.
fn alloc_or_say(size: isize, device: c_int, stream: Handle) -> Result<u64, Refusal> {
    static SAID: Once = Once::new();
    let given = guard(|| alloc(size, device, stream));
    if let Err(refused) = &given
        && says()
    {
        say_once(&SAID, refused);
    }
    given
}

/// Allocates for `torch.cuda.CUDAPluggableAllocator`, and for callers that check for null.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_malloc(size: isize, device: c_int, stream: Handle) -> *mut c_void {
    alloc_or_say(size, device, stream).map_or(ptr::null_mut(), pointer)
}

/// Allocates for `torch.cuda.CUDAPluggableAllocator`, which does not check for null.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C-unwind" fn larder_cuda_malloc_or_throw(
    size: isize,
    device: c_int,
    stream: Handle,
) -> *mut c_void {
    let is_out_of_memory = match alloc_or_say(size, device, stream) {
        Ok(address) => return pointer(address),
        Err(refused) => matches!(refused, Refusal::OutOfMemory { .. }),
    };
    if is_out_of_memory {
        throw::out_of_memory();
    }
    throw::runtime_error();
    ptr::null_mut()
}

/// Frees for `torch.cuda.CUDAPluggableAllocator`.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_free(block: *mut c_void, _size: isize, device: c_int, stream: Handle) {
    free(block, device, stream);
}

/// Records a stream, for `set_record_stream_fn` of PyTorch's allocator.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_record_stream(block: *mut c_void, stream: Handle) {
    static SAID: Once = Once::new();
    let recorded = guard(|| {
        let address = block.addr() as u64;
        if address == 0 {
            return Ok(());
        }
        let owner = device::used().find(|device| device.memory.bytes_at(address).is_some());
        owner
            .ok_or(Refusal::Unknown(address))?
            .record(address, stream);
        Ok(())
    });
    if let Err(refused) = recorded {
        say_once(&SAID, &refused);
    }
}

/// Removes a stream that the caller is about to destroy.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_forget_stream(device: c_int, stream: Handle) -> c_int {
    status(|| {
        let used = device::used().find(|used| used.ordinal == device);
        used.map_or(Ok(()), |used| used.forget_stream(stream))
    })
}

/// Allocates for `cupy.cuda.CFunctionAllocator`; `param` is the stream.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_cupy_malloc(
    param: *mut c_void,
    size: usize,
    device: c_int,
) -> *mut c_void {
    larder_cuda_malloc(
        isize::try_from(size).unwrap_or(isize::MAX),
        device,
        param.addr(),
    )
}

/// Frees for `cupy.cuda.CFunctionAllocator`.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_cupy_free(param: *mut c_void, block: *mut c_void, device: c_int) {
    free(block, device, param.addr());
}

/// Allocates for `rmm::mr::callback_memory_resource`; the argument is the device's number.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C-unwind" fn larder_cuda_rmm_allocate(
    size: usize,
    stream: Handle,
    device: *mut c_void,
) -> *mut c_void {
    let size = isize::try_from(size).unwrap_or(isize::MAX);
    let device = c_int::try_from(device.addr()).unwrap_or(-1);
    let given = larder_cuda_malloc(size, device, stream);
    if given.is_null() && size != 0 {
        throw::bad_alloc();
    }
    given
}

/// Frees for `rmm::mr::callback_memory_resource`.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_rmm_deallocate(
    block: *mut c_void,
    _size: usize,
    stream: Handle,
    device: *mut c_void,
) {
    free(block, c_int::try_from(device.addr()).unwrap_or(-1), stream);
}
