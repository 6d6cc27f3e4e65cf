//! Modules and the attributes of their kernels.

use std::fs;

use larder_cuda_abi::{Code, DevicePtr, FunctionHandle, ModuleHandle};

use super::launch::{DEFAULT_SHARED, MAX_SHARED, MAX_THREADS};
use crate::driver::Session;
use crate::entry::{answer, call};
use crate::ffi::{CallerText, Out};
use crate::ptx;

/// First bytes of device code other than PTX: an ELF file, a fat binary, and its wrapper.
const BINARIES: [[u8; 4]; 3] = [
    [0x7f, b'E', b'L', b'F'],
    [0x50, 0xed, 0x55, 0xba],
    [0xb1, 0x43, 0x62, 0x46],
];

/// Numbers of function attributes.
const ATTRIBUTE_MAX_THREADS: u32 = 0;
const ATTRIBUTE_REGISTERS: u32 = 4;
const ATTRIBUTE_PTX_VERSION: u32 = 5;
const ATTRIBUTE_BINARY_VERSION: u32 = 6;
pub(crate) const ATTRIBUTE_MAX_DYNAMIC_SHARED: u32 = 8;
const ATTRIBUTE_CARVEOUT: u32 = 9;
const ATTRIBUTES: u32 = 16;

fn load(driver: &mut Session, image: &[u8]) -> Result<ModuleHandle, Code> {
    driver.current()?;
    driver.unsafe_call()?;
    if BINARIES.iter().any(|magic| image.starts_with(magic)) {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let text = std::str::from_utf8(image).map_err(|_| Code::INVALID_IMAGE)?;
    driver.load_module(ptx::read(text)?).map(ModuleHandle)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleLoad(module: Out<ModuleHandle>, path: CallerText) -> Code {
    answer("cuModuleLoad", module, |driver| {
        let image = fs::read(path.get()?).map_err(|_| Code::FILE_NOT_FOUND)?;
        // The text in a file may be NUL-terminated, as in memory.
        let end = image.iter().position(|byte| *byte == 0);
        let text = image.get(..end.unwrap_or(image.len())).unwrap_or(&image);
        load(driver, text)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleLoadData(module: Out<ModuleHandle>, image: CallerText) -> Code {
    answer("cuModuleLoadData", module, |driver| {
        load(driver, image.bytes()?)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleUnload(module: ModuleHandle) -> Code {
    call("cuModuleUnload", |driver| {
        driver.current()?;
        driver.unsafe_call()?;
        driver.unload_module(module.0)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetFunction(
    function: Out<FunctionHandle>,
    module: ModuleHandle,
    name: CallerText,
) -> Code {
    answer("cuModuleGetFunction", function, |driver| {
        let name = name.get()?;
        let module = driver.modules.get(module.0)?;
        driver.alive(module.context)?;
        let handle = module.functions.get(&name).ok_or(Code::NOT_FOUND)?;
        Ok(FunctionHandle(*handle))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetGlobal_v2(
    at: Out<DevicePtr>,
    bytes: Out<usize>,
    module: ModuleHandle,
    name: CallerText,
) -> Code {
    call("cuModuleGetGlobal_v2", |driver| {
        if at.is_null() && bytes.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let name = name.get()?;
        let module = driver.modules.get(module.0)?;
        driver.alive(module.context)?;
        let (start, length) = module.variables.get(&name).ok_or(Code::NOT_FOUND)?;
        at.give_if_asked(*start);
        bytes.give_if_asked(*length as usize);
        Ok(())
    })
}

/// Reports made-up requirements of a kernel, since there is no compiled code.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncGetAttribute(
    value: Out<i32>,
    attribute: u32,
    function: FunctionHandle,
) -> Code {
    answer("cuFuncGetAttribute", value, |driver| {
        let function = driver.functions.get(function.0)?;
        let default = match attribute {
            ATTRIBUTE_MAX_THREADS => MAX_THREADS as i32,
            ATTRIBUTE_REGISTERS => super::occupancy::REGISTERS as i32,
            ATTRIBUTE_PTX_VERSION | ATTRIBUTE_BINARY_VERSION => 90,
            ATTRIBUTE_MAX_DYNAMIC_SHARED => DEFAULT_SHARED as i32,
            ATTRIBUTE_CARVEOUT => -1,
            _ if attribute < ATTRIBUTES => 0,
            _ => return Err(Code::INVALID_VALUE),
        };
        Ok(*function.attributes.get(&attribute).unwrap_or(&default))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncSetAttribute(
    function: FunctionHandle,
    attribute: u32,
    value: i32,
) -> Code {
    call("cuFuncSetAttribute", |driver| {
        let function = driver.functions.get_mut(function.0)?;
        let fits = match attribute {
            ATTRIBUTE_MAX_DYNAMIC_SHARED => (0..=MAX_SHARED as i32).contains(&value),
            ATTRIBUTE_CARVEOUT => (-1..=100).contains(&value),
            // Cluster dimensions, and whether a non-portable size is allowed.
            11..ATTRIBUTES => value >= 0,
            _ => false,
        };
        if !fits {
            return Err(Code::INVALID_VALUE);
        }
        function.attributes.insert(attribute, value);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncSetCacheConfig(function: FunctionHandle, config: u32) -> Code {
    call("cuFuncSetCacheConfig", |driver| {
        driver.functions.get(function.0)?;
        if config > 3 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    })
}
