//! Launches of kernels.

use core::ffi::c_void;

use larder_cuda_abi::{Code, FunctionHandle, LaunchConfig, StreamHandle};

use super::module::ATTRIBUTE_MAX_DYNAMIC_SHARED;
use super::occupancy;
use crate::driver::Session;
use crate::entry::call;
use crate::ffi::In;
use crate::module::{Function, LaunchArguments, LaunchShape, SimLaunch};
use crate::queue::Work;

/// Maximum number of threads in a block.
pub(crate) const MAX_THREADS: u32 = 1024;
/// Maximum number of threads of a block in each dimension.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];

/// Maximum number of blocks of a grid in each dimension.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// Bytes of shared memory that a block may have by default, and after the program has raised the
/// limit.
pub(crate) const DEFAULT_SHARED: u32 = 48 << 10;
pub(crate) const MAX_SHARED: u32 = 227 << 10;

/// Tags in the list `extra`: the end of the list, the buffer with the parameters, and the buffer's
/// length.
const EXTRA_END: usize = 0;
const EXTRA_BUFFER: usize = 1;
const EXTRA_BYTES: usize = 2;

/// Copies a launch's parameters. Either `each` points to each one, or the buffer that `extra`
/// describes holds them all.
fn read_parameters(
    function: &Function,
    each: &In<*const c_void>,
    extra: Option<&In<*const c_void>>,
) -> Result<LaunchArguments, Code> {
    let parameters = &function.parameters;
    let values = match extra.filter(|extra| !extra.is_null()) {
        Some(_) if !each.is_null() => return Err(Code::INVALID_VALUE),
        Some(extra) => {
            let buffer = read_extra(extra, function.parameter_bytes())?;
            let pieces = parameters
                .iter()
                .filter_map(|at| buffer.get(at.offset..at.offset + at.bytes));
            pieces.map(<[u8]>::to_vec).collect()
        }
        None => parameters
            .iter()
            .enumerate()
            .map(|(index, parameter)| each.bytes_behind(index, parameter.bytes))
            .collect::<Result<Vec<_>, Code>>()?,
    };
    Ok(LaunchArguments::new(parameters, &values))
}

/// Returns the buffer of parameters, which holds at least `needed` bytes.
fn read_extra(extra: &In<*const c_void>, needed: usize) -> Result<Vec<u8>, Code> {
    let (mut buffer, mut bytes) = (None, None);
    let mut index = 0;
    loop {
        match extra.at(index)?.addr() {
            EXTRA_END => break,
            EXTRA_BUFFER => buffer = Some(index + 1),
            EXTRA_BYTES => {
                let length = extra.bytes_behind(index + 1, size_of::<usize>())?;
                let length = length.try_into().map_err(|_| Code::INVALID_VALUE)?;
                bytes = Some(usize::from_ne_bytes(length));
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        index += 2;
    }
    match (buffer, bytes) {
        (Some(buffer), Some(bytes)) if bytes >= needed => extra.bytes_behind(buffer, bytes),
        (None, None) if needed == 0 => Ok(Vec::new()),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Returns whether a device can run a kernel with this grid, block and shared memory.
fn check_shape(function: &Function, shape: &LaunchShape) -> bool {
    let within = |shape: [u32; 3], max: [u32; 3]| {
        let mut pairs = shape.iter().zip(max);
        pairs.all(|(side, max)| (1..=max).contains(side))
    };
    let allowed = function.attributes.get(&ATTRIBUTE_MAX_DYNAMIC_SHARED);
    let max_shared = allowed.map_or(DEFAULT_SHARED, |allowed| allowed.unsigned_abs());
    within(shape.grid, MAX_GRID)
        && within(shape.block, MAX_BLOCK)
        && shape.block.iter().product::<u32>() <= MAX_THREADS
        && shape.shared_bytes <= max_shared
}

/// Queues a launch.
fn launch(
    driver: &mut Session,
    handle: FunctionHandle,
    stream: StreamHandle,
    shape: LaunchShape,
    arguments: impl FnOnce(&Function) -> Result<LaunchArguments, Code>,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    let function = driver.functions.get(handle.0)?;
    if driver.streams.get(stream)?.context != function.context {
        return Err(Code::INVALID_HANDLE);
    }
    if !check_shape(function, &shape) {
        return Err(Code::INVALID_VALUE);
    }
    let arguments = arguments(function)?;
    let name = function.name.clone();
    let Some(body) = driver.bodies.get(&name).copied() else {
        driver.findings.add(format!(
            "kernel {name} has no body: register one of that name with larder_stand_in_kernel"
        ));
        return Err(Code::NOT_SUPPORTED);
    };
    let launch = SimLaunch {
        function: handle.0,
        name,
        body,
        shape,
        arguments,
    };
    driver.submit(stream, Work::Kernel(Box::new(launch)))?;
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchKernel(
    function: FunctionHandle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: StreamHandle,
    parameters: In<*const c_void>,
    extra: In<*const c_void>,
) -> Code {
    call("cuLaunchKernel", |driver| {
        let shape = LaunchShape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
        };
        launch(driver, function, stream, shape, |function| {
            read_parameters(function, &parameters, Some(&extra))
        })
    })
}

/// Refuses launches with attributes, since none of them would have an effect here.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchKernelEx(
    config: In<LaunchConfig>,
    function: FunctionHandle,
    parameters: In<*const c_void>,
    extra: In<*const c_void>,
) -> Code {
    call("cuLaunchKernelEx", |driver| {
        let config = config.get()?;
        if config.attribute_count != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let shape = LaunchShape {
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes,
        };
        launch(driver, function, config.stream, shape, |function| {
            read_parameters(function, &parameters, Some(&extra))
        })
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchCooperativeKernel(
    function: FunctionHandle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: StreamHandle,
    parameters: In<*const c_void>,
) -> Code {
    call("cuLaunchCooperativeKernel", |driver| {
        let shape = LaunchShape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
        };
        launch(driver, function, stream, shape, |function| {
            let blocks: u64 = shape.grid.iter().map(|side| u64::from(*side)).product();
            let threads = shape.block.iter().product();
            let resident = occupancy::max_resident_blocks(threads, shared_bytes as usize);
            if blocks > u64::from(resident) {
                return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
            }
            read_parameters(function, &parameters, None)
        })
    })
}
