//! Occupancy: how many blocks fit on a multiprocessor. The kernel's requirements are made up, and
//! the rules are those of compute capability 9.0. No result says anything about speed.

use larder_cuda_abi::{Code, FunctionHandle, LaunchConfig, SharedMemoryOf};

use super::launch::{MAX_SHARED, MAX_THREADS};
use crate::entry::{answer, call};
use crate::ffi::{In, Out};

/// Registers that every kernel is reported to use.
pub(crate) const REGISTERS: u32 = 32;

/// Limits of a multiprocessor: threads, blocks, bytes of shared memory, and the bytes of it that
/// each block uses in addition to its request.
const THREADS: u32 = 2048;
const BLOCKS: u32 = 32;
const SHARED: usize = 228 << 10;
const SHARED_LOST: usize = 1 << 10;

const WARP: u32 = 32;
const MULTIPROCESSORS: u32 = 8;

/// Maximum number of blocks in a cluster.
const CLUSTER: i32 = 8;

/// Returns the number of blocks that fit on a multiprocessor at a time.
fn resident(threads: u32, shared: usize) -> u32 {
    if threads == 0 || threads > MAX_THREADS || shared > MAX_SHARED as usize {
        return 0;
    }
    let by_threads = THREADS / threads.next_multiple_of(WARP);
    let by_shared = match shared {
        0 => BLOCKS,
        shared => (SHARED / (shared + SHARED_LOST)) as u32,
    };
    by_threads.min(by_shared).min(BLOCKS)
}

/// Returns the number of blocks that fit on the device at a time.
pub(super) fn max_resident_blocks(threads: u32, shared: usize) -> u32 {
    MULTIPROCESSORS * resident(threads, shared)
}

fn active(
    name: &'static str,
    blocks: Out<i32>,
    function: FunctionHandle,
    threads: i32,
    shared: usize,
    flags: u32,
) -> Code {
    answer(name, blocks, |driver| {
        driver.functions.get(function.0)?;
        let threads = u32::try_from(threads).map_err(|_| Code::INVALID_VALUE)?;
        if threads == 0 || flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(resident(threads, shared) as i32)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<i32>,
    function: FunctionHandle,
    threads: i32,
    shared: usize,
) -> Code {
    let name = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    active(name, blocks, function, threads, shared, 0)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<i32>,
    function: FunctionHandle,
    threads: i32,
    shared: usize,
    flags: u32,
) -> Code {
    let name = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags";
    active(name, blocks, function, threads, shared, flags)
}

/// The constraints of a search for a block size.
struct OccupancySearch {
    shared: usize,
    /// The program's function from block size to shared memory, called before the driver is locked.
    shared_of: SharedMemoryOf,
    limit: i32,
    flags: u32,
}

fn potential(
    name: &'static str,
    blocks: &Out<i32>,
    threads: &Out<i32>,
    function: FunctionHandle,
    search: &OccupancySearch,
) -> Code {
    let shared = |threads: u32| match search.shared_of {
        // SAFETY: by FFI2 the function accepts any number of threads and only calculates.
        Some(shared_of) => unsafe { shared_of(threads as i32) },
        None => search.shared,
    };
    let max = match u32::try_from(search.limit) {
        Ok(0) | Err(_) => MAX_THREADS,
        Ok(limit) => limit.min(MAX_THREADS),
    };
    let sizes = (1..=max.div_ceil(WARP)).map(|warps| (warps * WARP).min(max));
    // Of the block sizes that keep the most threads busy, the largest is chosen.
    let best = sizes
        .map(|size| (resident(size, shared(size)), size))
        .max_by_key(|(count, size)| (count * size, *size));
    call(name, |driver| {
        blocks.check()?;
        threads.check()?;
        driver.functions.get(function.0)?;
        if search.limit < 0 || search.flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let (count, size) = best.ok_or(Code::INVALID_VALUE)?;
        blocks.give((MULTIPROCESSORS * count) as i32)?;
        threads.give(size as i32)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxPotentialBlockSize(
    blocks: Out<i32>,
    threads: Out<i32>,
    function: FunctionHandle,
    shared_of: SharedMemoryOf,
    shared: usize,
    limit: i32,
) -> Code {
    let search = OccupancySearch {
        shared,
        shared_of,
        limit,
        flags: 0,
    };
    let name = "cuOccupancyMaxPotentialBlockSize";
    potential(name, &blocks, &threads, function, &search)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    blocks: Out<i32>,
    threads: Out<i32>,
    function: FunctionHandle,
    shared_of: SharedMemoryOf,
    shared: usize,
    limit: i32,
    flags: u32,
) -> Code {
    let search = OccupancySearch {
        shared,
        shared_of,
        limit,
        flags,
    };
    let name = "cuOccupancyMaxPotentialBlockSizeWithFlags";
    potential(name, &blocks, &threads, function, &search)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<usize>,
    function: FunctionHandle,
    blocks: i32,
    threads: i32,
) -> Code {
    answer("cuOccupancyAvailableDynamicSMemPerBlock", bytes, |driver| {
        driver.functions.get(function.0)?;
        let blocks = u32::try_from(blocks).map_err(|_| Code::INVALID_VALUE)?;
        let threads = u32::try_from(threads).map_err(|_| Code::INVALID_VALUE)?;
        if blocks == 0 || blocks > resident(threads, 0) {
            return Err(Code::INVALID_VALUE);
        }
        let share = (SHARED / blocks as usize).saturating_sub(SHARED_LOST);
        Ok(share.min(MAX_SHARED as usize))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxPotentialClusterSize(
    size: Out<i32>,
    function: FunctionHandle,
    config: In<LaunchConfig>,
) -> Code {
    answer("cuOccupancyMaxPotentialClusterSize", size, |driver| {
        driver.functions.get(function.0)?;
        config.get()?;
        Ok(CLUSTER)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxActiveClusters(
    clusters: Out<i32>,
    function: FunctionHandle,
    config: In<LaunchConfig>,
) -> Code {
    answer("cuOccupancyMaxActiveClusters", clusters, |driver| {
        driver.functions.get(function.0)?;
        let config = config.get()?;
        let sides = config.block.iter();
        let threads = sides.fold(1_u32, |all, side| all.saturating_mul(*side));
        let blocks = max_resident_blocks(threads, config.shared_bytes as usize);
        Ok(blocks as i32 / CLUSTER)
    })
}
