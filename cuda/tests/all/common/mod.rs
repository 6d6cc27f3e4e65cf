//! The parts that the tests share.
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

/// Memory of each of the stand-in's devices.
pub(crate) const DEVICE_BYTES: u64 = 1 << 30;

pub(crate) const MIB: u64 = 1 << 20;

static TURNS: RwLock<()> = RwLock::new(());

/// Returns the driver, which is loaded once.
pub(crate) fn driver() -> &'static Driver {
    static LOADED: OnceLock<&'static Driver> = OnceLock::new();
    LOADED.get_or_init(|| load_from_env().unwrap())
}

/// Takes a turn for a test that only uses the driver. Such tests run in parallel, but not with a test that controls the
/// driver.
pub(crate) fn together() -> RwLockReadGuard<'static, ()> {
    driver();
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a turn for a test that captures. A context with a stream that is being captured refuses calls of other tests,
/// such as those with which cudarc creates its first stream.
pub(crate) fn apart() -> RwLockWriteGuard<'static, ()> {
    driver();
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the stand-in's control. With `LARDER_TEST_AS_REAL` there is none, which tells `cuda/carry.sh` which tests
/// run on a GPU.
fn control() -> Option<&'static StandIn> {
    let as_real = std::env::var_os("LARDER_TEST_AS_REAL").is_some();
    driver().stand_in().filter(|_| !as_real)
}

/// Takes a turn for a test that controls the stand-in: alone, and from a clean state. Queued work is deferred if
/// `LARDER_STAND_IN_SEED` is set. Returns `None`, and prints that the test is skipped, if there is no control.
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

/// Runs a test [`alone`], if the stand-in can be controlled. The test must leave nothing allocated.
#[track_caller]
pub(crate) fn alone_and_clean(test: impl FnOnce(&'static StandIn)) {
    if let Some((control, _turn)) = alone() {
        test(control);
        assert_clean(control);
    }
}

const CHILD: &str = "LARDER_TEST_CHILD";

/// Runs a long test over the stand-in in a child process, so that two long tests run at the same time. To be called
/// before the test takes its turn. Returns `true` if the test has run there and nothing is left to do.
#[track_caller]
pub(crate) fn ran_in_child() -> bool {
    // A test's thread has the test's name. If only one test runs at a time the thread has none, and a child would save
    // no time.
    let thread = std::thread::current();
    let test = thread.name().filter(|name| name.contains("::"));
    let is_child = std::env::var_os(CHILD).is_some();
    let (Some(test), false, Some(_)) = (test, is_child, control()) else {
        return false;
    };
    // A test that calls this again has already run in full.
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

pub(crate) const CODES: [Code; 3] = [Code::OUT_OF_MEMORY, Code::UNKNOWN, Code::INVALID_VALUE];

/// Returns whether a sweep refuses the call numbered `place` with the code numbered `nth_code`. The sweep refuses each
/// call once, with the codes in turn, or once with each code if `LARDER_FAULTS=all`.
pub(crate) fn is_swept(nth_code: usize, place: usize) -> bool {
    place % CODES.len() == nth_code || all_faults()
}

/// Returns the number in an environment variable, or `otherwise` if the variable is not set.
pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    let said = std::env::var(variable).ok();
    said.map_or(otherwise, |said| said.parse().expect("a number"))
}

/// Returns whether sweeps refuse each call with each code (`./check.sh long`).
pub(crate) fn all_faults() -> bool {
    std::env::var("LARDER_FAULTS").is_ok_and(|word| word == "all")
}

/// Returns how many of `all` cases a test runs: an eighth, or all if [`all_faults`].
pub(crate) fn rounds(all: u64) -> u64 {
    if all_faults() { all } else { all.div_ceil(8) }
}

/// Checks that the stand-in holds nothing but contexts, and has reported nothing.
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

/// Runs `act` eagerly and under the given number of seeds. The stand-in must report nothing.
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

pub(crate) fn streams(context: &Context, count: usize) -> Vec<Arc<CudaStream>> {
    let new = |_| context.cudarc().new_stream().unwrap();
    (0..count).map(new).collect()
}

pub(crate) fn request(bytes: u64) -> GrowRequest {
    GrowRequest {
        bytes,
        align: Align::new(256).unwrap(),
        at: None,
    }
}

/// Returns a configuration for regions of `bytes` bytes each, up to `limit_bytes` in total.
pub(crate) fn regions_of(bytes: u64, limit_bytes: u64) -> RegionConfig {
    RegionConfig {
        growth: Growth::Range {
            unit_bytes: bytes,
            ahead_divisor: None,
        },
        ..RegionConfig::new(limit_bytes)
    }
}

/// Creates a pool over pages of a memory. Its tables, a few kilobytes, are never freed.
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

pub(crate) fn fill(stream: &CudaStream, at: u64, bytes: u64, value: u8) {
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the tests fill only blocks that they hold.
    unsafe { result::memset_d8_async(at, value, bytes as usize, stream.cu_stream()) }.unwrap();
}

/// Reads device memory once all earlier work is done.
pub(crate) fn read(stream: &CudaStream, at: u64, bytes: u64) -> Vec<u8> {
    stream.context().bind_to_thread().unwrap();
    let mut host = vec![0u8; bytes as usize];
    // SAFETY: the tests read only blocks that they hold; the copy ends before the buffer is dropped.
    unsafe { result::memcpy_dtoh_async(&mut host, at, stream.cu_stream()) }.unwrap();
    stream.synchronize().unwrap();
    host
}

#[track_caller]
pub(crate) fn assert_filled(stream: &CudaStream, at: u64, bytes: u64, value: u8) {
    let host = read(stream, at, bytes);
    let odd = host.iter().position(|byte| *byte != value);
    assert_eq!(odd, None, "not all of {bytes} bytes at {at:#x} are {value}");
}
