//! Looks functions up by name, as the CUDA runtime does.

use core::ffi::c_void;
use std::ffi::CString;
use std::sync::OnceLock;

use larder_cuda_abi::{Code, functions};

use crate::driver::Session;
use crate::entry::call;
use crate::ffi::{CallerText, Out};

/// Outcomes of a search, `CUdriverProcAddressQueryResult`.
const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// All valid flags: the legacy default stream and the per-thread default stream.
const FLAGS: u64 = 0b11;

/// Returns the newest function with a name that a version of CUDA has, or null.
fn find(
    driver: &Session,
    symbol: &CallerText,
    version: i32,
    flags: u64,
) -> Result<(*const c_void, u32), Code> {
    let base = symbol.get()?;
    let version = u32::try_from(version).map_err(|_| Code::INVALID_VALUE)?;
    if version > driver.version || flags & !FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let address = functions::newest(&base, version).map_or(core::ptr::null(), address_of);
    let status = match functions::newest(&base, u32::MAX) {
        _ if !address.is_null() => FOUND,
        Some(_) => VERSION_NOT_SUFFICIENT,
        None => NOT_FOUND,
    };
    Ok((address, status))
}

/// Returns the address of an exported function of this library.
fn address_of(name: &str) -> *const c_void {
    let Ok(name) = CString::new(name) else {
        return core::ptr::null();
    };
    // SAFETY: the library of the handle is never unloaded; the name is NUL-terminated.
    unsafe { libc::dlsym(own_handle() as *mut c_void, name.as_ptr()) }
}

/// Returns the loader's handle of this library.
fn own_handle() -> usize {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    *HANDLE.get_or_init(|| {
        let mut place = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        let own: *const c_void = (own_handle as fn() -> usize as *const ()).cast();
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: `dladdr` looks the address up and writes to the local, whose type is valid as all
        // zeroes. The path is null or a string of the loader's; nothing new is loaded.
        let handle = unsafe {
            libc::dladdr(own, place.as_mut_ptr());
            libc::dlopen(place.assume_init().dli_fname, flags)
        };
        handle as usize
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetProcAddress(
    symbol: CallerText,
    function: Out<*const c_void>,
    version: i32,
    flags: u64,
) -> Code {
    call("cuGetProcAddress", |driver| {
        function.check()?;
        let (address, status) = find(driver, &symbol, version, flags)?;
        function.give(address)?;
        match status {
            FOUND => Ok(()),
            _ => Err(Code::NOT_FOUND),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetProcAddress_v2(
    symbol: CallerText,
    function: Out<*const c_void>,
    version: i32,
    flags: u64,
    status: Out<u32>,
) -> Code {
    call("cuGetProcAddress_v2", |driver| {
        function.check()?;
        let (address, found) = find(driver, &symbol, version, flags)?;
        status.give_if_asked(found);
        function.give(address)
    })
}
