//! The parts shared by tests over a driver.
#![allow(dead_code, reason = "no test program uses all of it")]

pub(crate) mod graph;
pub(crate) mod kernels;
pub(crate) mod refusal;
pub(crate) mod setup;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cudarc::driver::{CudaStream, result};
use larder_core::pages::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables};
use larder_core::{Align, Chunk, GrowRequest, Growth, RegionConfig};
use larder_cuda::driver::abi::Code;
use larder_cuda::driver::{Driver, StandIn, load_from_env};
use larder_cuda::{Context, VirtualMemory};

/// Memory of the stand-in's devices.
pub(crate) const DEVICE_BYTES: u64 = 1 << 30;

/// One mebibyte.
pub(crate) const MIB: u64 = 1 << 20;

static TURNS: RwLock<()> = RwLock::new(());

/// The driver, loaded and announced once.
pub(crate) fn driver() -> &'static Driver {
    static LOADED: OnceLock<&'static Driver> = OnceLock::new();
    LOADED.get_or_init(|| load_from_env().unwrap())
}

/// For tests that only use the driver: they run side by side, but not beside one that controls it.
pub(crate) fn together() -> RwLockReadGuard<'static, ()> {
    driver();
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

/// For tests that capture: a context with a stream that captures refuses calls of others, such as
/// those by which cudarc makes its first stream.
pub(crate) fn apart() -> RwLockWriteGuard<'static, ()> {
    driver();
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The stand-in's control. With `LARDER_TEST_AS_REAL` there is none: so `cuda/carry.sh` learns which tests
/// run on a GPU.
fn control() -> Option<&'static StandIn> {
    let as_real = std::env::var_os("LARDER_TEST_AS_REAL").is_some();
    driver().stand_in().filter(|_| !as_real)
}

/// For tests that control the stand-in: alone, and from a clean state, with queued work deferred if
/// `LARDER_STAND_IN_SEED` says so. `None`, and a line that says so, where there is none.
pub(crate) fn alone() -> Option<(&'static StandIn, RwLockWriteGuard<'static, ()>)> {
    let Some(control) = control() else {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a test");
        println!("skipped: {test} needs the stand-in's control");
        return None;
    };
    let turn = TURNS.write().unwrap_or_else(PoisonError::into_inner);
    control.clear_failures();
    control.schedule_eagerly();
    control.reset(2, DEVICE_BYTES);
    Some((control, turn))
}

/// Runs a test [`alone`], where it can be; it leaves nothing.
#[track_caller]
pub(crate) fn alone_and_clean(test: impl FnOnce(&'static StandIn)) {
    if let Some((control, _turn)) = alone() {
        test(control);
        assert_clean(control);
    }
}

/// Set in the processes of [`ran_in_child`].
const CHILD: &str = "LARDER_TEST_CHILD";

/// For long tests over the stand-in, before their turn: the test runs in a process of its own, so that two
/// long ones run at once. `true` where that was done: there is nothing left to do.
#[track_caller]
pub(crate) fn ran_in_child() -> bool {
    // A test's thread has its name; with one thread at a time it has none, and a child would win nothing.
    let thread = std::thread::current();
    let test = thread.name().filter(|name| name.contains("::"));
    let is_child = std::env::var_os(CHILD).is_some();
    let (Some(test), false, Some(_)) = (test, is_child, control()) else {
        return false;
    };
    // A test that asks again has run whole.
    static RAN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if !RAN.lock().unwrap().insert(test.to_owned()) {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program);
    let child = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    let cause = String::from_utf8_lossy(&output.stderr);
    assert!(
        passed,
        "{test} in a child: {}\n{said}\n{cause}",
        output.status
    );
    true
}

/// The driver's answer when a sweep refuses a call.
pub(crate) const CODES: [Code; 3] = [Code::OUT_OF_MEMORY, Code::UNKNOWN, Code::INVALID_VALUE];

/// Whether a sweep of refusals makes this one: each place is refused once, with the codes in turn, and
/// with `LARDER_FAULTS=all` once with each code.
pub(crate) fn is_swept(nth_code: usize, place: usize) -> bool {
    place % CODES.len() == nth_code || all_faults()
}

/// Returns the number in an environment variable; `otherwise` if it is not set.
pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    let said = std::env::var(variable).ok();
    said.map_or(otherwise, |said| said.parse().expect("a number"))
}

/// Returns whether sweeps make every refusal (`./check.sh long`).
pub(crate) fn all_faults() -> bool {
    std::env::var("LARDER_FAULTS").is_ok_and(|word| word == "all")
}

/// Returns how many of `all` cases a test runs: an eighth, or all where sweeps make every refusal.
pub(crate) fn rounds(all: u64) -> u64 {
    if all_faults() { all } else { all.div_ceil(8) }
}

/// Nothing is left on any device, and nothing exists but contexts.
#[track_caller]
pub(crate) fn assert_clean(control: &StandIn) {
    let alive: Vec<_> = control
        .alive()
        .into_iter()
        .filter(|alive| alive.kind != "context")
        .collect();
    assert!(alive.is_empty(), "left: {alive:?}");
    for device in 0..2 {
        assert_eq!(control.used(device), 0, "device {device}");
    }
    assert_eq!(control.findings(), Vec::<String>::new());
}

/// Runs `act` eagerly and under this many seeds; the stand-in must report nothing.
#[track_caller]
pub(crate) fn under_all_schedules(control: &StandIn, seeds: u64, act: impl Fn()) {
    for seed in 0..=seeds {
        match seed.checked_sub(1) {
            Some(seed) => control.schedule_deferred(seed),
            None => control.schedule_eagerly(),
        }
        act();
        control.schedule_eagerly();
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
    }
}

/// New streams of a context.
pub(crate) fn streams(context: &Context, count: usize) -> Vec<Arc<CudaStream>> {
    let new = |_| context.cudarc().new_stream().unwrap();
    (0..count).map(new).collect()
}

/// Returns a request to a sub-allocator.
pub(crate) fn request(bytes: u64) -> GrowRequest {
    GrowRequest {
        bytes,
        align: Align::new(256).unwrap(),
        at: None,
    }
}

/// Returns regions of `bytes` bytes, never more than `limit_bytes`.
pub(crate) fn regions_of(bytes: u64, limit_bytes: u64) -> RegionConfig {
    RegionConfig {
        growth: Growth::Range {
            unit_bytes: bytes,
            ahead_divisor: None,
        },
        ..RegionConfig::new(limit_bytes)
    }
}

/// A pool over pages of a memory. Its tables, a few kilobytes, are never freed.
pub(crate) fn paged_over(memory: &VirtualMemory, limit_bytes: u64) -> PagePool<'static> {
    let mut config = PageConfig::new(memory.addresses(), Backing::Billed);
    config.page_bytes = memory.page_bytes();
    config.limit_bytes = limit_bytes;
    let pages = (memory.addresses().bytes() / memory.page_bytes()) as usize;
    let tables = PageTables {
        entries: vec![PageEntry::EMPTY; pages].leak(),
        handles: vec![Handle::VACANT; 64].leak(),
        mappings: vec![Mapping::VACANT; 128].leak(),
    };
    let chunks = vec![Chunk::VACANT; 64].leak();
    PagePool::new(config, chunks, tables).unwrap()
}

/// Fills memory of a device with a byte.
pub(crate) fn fill(stream: &CudaStream, at: u64, bytes: u64, value: u8) {
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the tests fill blocks that they hold.
    unsafe { result::memset_d8_async(at, value, bytes as usize, stream.cu_stream()) }.unwrap();
}

/// Memory of a device, once all work before is done.
pub(crate) fn read(stream: &CudaStream, at: u64, bytes: u64) -> Vec<u8> {
    stream.context().bind_to_thread().unwrap();
    let mut host = vec![0u8; bytes as usize];
    // SAFETY: the tests read blocks that they hold; the copy is over before the buffer goes.
    unsafe { result::memcpy_dtoh_async(&mut host, at, stream.cu_stream()) }.unwrap();
    stream.synchronize().unwrap();
    host
}

/// Checks that memory of a device is filled with a byte.
#[track_caller]
pub(crate) fn assert_filled(stream: &CudaStream, at: u64, bytes: u64, value: u8) {
    let host = read(stream, at, bytes);
    let odd = host.iter().position(|byte| *byte != value);
    assert_eq!(odd, None, "not all of {bytes} bytes at {at:#x} are {value}");
}
