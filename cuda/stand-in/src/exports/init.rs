//! Initialization, the version, and error texts.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use larder_cuda_abi::Code;

use crate::entry::{answer, call};
use crate::ffi::Out;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuInit(flags: u32) -> Code {
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
pub(super) extern "C" fn cuDriverGetVersion(version: Out<i32>) -> Code {
    answer("cuDriverGetVersion", version, |driver| {
        Ok(driver.version as i32)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetErrorName(code: Code, text: Out<*const c_char>) -> Code {
    call("cuGetErrorName", |_| {
        give_text(text, c_texts(code).map(|(name, _)| name))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetErrorString(code: Code, text: Out<*const c_char>) -> Code {
    call("cuGetErrorString", |_| {
        give_text(text, c_texts(code).map(|(_, meaning)| meaning))
    })
}

/// Returns the name and the meaning of a code, as static C strings.
fn c_texts(code: Code) -> Option<(&'static CStr, &'static CStr)> {
    static TEXTS: OnceLock<BTreeMap<Code, (CString, CString)>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let text = |text: Option<&str>| CString::new(text.unwrap_or_default()).unwrap_or_default();
        Code::all()
            .map(|code| (code, (text(code.name()), text(code.meaning()))))
            .collect()
    });
    let (name, meaning) = texts.get(&code)?;
    Some((name, meaning))
}

/// Writes a text. If there is none, writes null and returns an error.
fn give_text(place: Out<*const c_char>, text: Option<&CStr>) -> Result<(), Code> {
    place.give(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    text.map(drop).ok_or(Code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuProfilerStart() -> Code {
    call("cuProfilerStart", |driver| driver.current().map(drop))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuProfilerStop() -> Code {
    call("cuProfilerStop", |driver| driver.current().map(drop))
}
