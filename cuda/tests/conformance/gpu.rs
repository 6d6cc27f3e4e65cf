//! The driver of this process, which the tests use in turn. Each test has the primary context of device 0 current, and
//! leaves nothing behind.
//!
//! `LARDER_CUDA_DRIVER` chooses the driver: `real` is NVIDIA's, `stand-in` is ours.

use std::{
    cell::Cell,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use larder_cuda::driver::{self, Driver, StandIn};
use larder_cuda_abi::ContextHandle;

use crate::{
    api::{basic, context},
    kernels,
};

/// Bytes of memory on each of the stand-in's devices.
pub(crate) const STAND_IN_BYTES: u64 = 16 << 30;
pub(crate) const STAND_IN_DEVICES: u32 = 2;

/// Returns the driver, which is loaded once.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<&'static Driver> = OnceLock::new();
    DRIVER.get_or_init(|| driver::load_from_env().expect("a driver"))
}

pub(crate) fn stand_in() -> Option<&'static StandIn> {
    driver().stand_in()
}

/// Registers the kernels' bodies with the stand-in; a real driver takes the kernels from the PTX.
pub(crate) fn register_kernels() {
    let Some(stand_in) = stand_in() else {
        return;
    };
    for (name, body) in kernels::BODIES {
        // SAFETY: the body is that of the kernel with this name in `kernels::PTX`, and no other kernel here has the
        // name.
        unsafe { stand_in.register_kernel(name, body) }.expect("a kernel");
    }
}

/// Returns the seed with which the stand-in defers the work of every test, if there is one.
fn seed() -> Option<u64> {
    std::env::var("LARDER_STAND_IN_SEED").ok()?.parse().ok()
}

/// The primary context of device 0, kept for the whole process.
static TURN: Mutex<Option<ContextHandle>> = Mutex::new(None);

/// Waits for the test's turn, without using the driver in this process.
pub(crate) fn turn() -> MutexGuard<'static, Option<ContextHandle>> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A test's turn on the driver.
#[derive(Debug)]
pub(crate) struct Gpu {
    context: ContextHandle,
    stand_in: Option<&'static StandIn>,
    findings_expected: Cell<bool>,
    _turn: MutexGuard<'static, Option<ContextHandle>>,
}

/// Takes a turn on the driver, for a test that NVIDIA's driver passes too.
pub(crate) fn portable() -> Gpu {
    let mut turn = turn();
    let failed_before = TURN.is_poisoned();
    TURN.clear_poison();
    let stand_in = stand_in();
    if let Some(stand_in) = stand_in.filter(|_| failed_before) {
        stand_in.reset(STAND_IN_DEVICES, STAND_IN_BYTES);
        *turn = None;
    }
    if let (Some(stand_in), Some(seed)) = (stand_in, seed()) {
        stand_in.schedule_deferred(seed);
    }
    basic::init(0).expect("a driver");
    let context = *turn.get_or_insert_with(|| context::retain_primary(0).expect("a context"));
    context::set(context).expect("a current context");
    Gpu {
        context,
        stand_in,
        findings_expected: Cell::new(false),
        _turn: turn,
    }
}

/// Takes a turn on the stand-in, for a test that would say nothing about NVIDIA's driver. Elsewhere, or with
/// `LARDER_TEST_AS_REAL` (for `cuda/carry.sh`), prints the reason why the test is skipped, and returns `None`.
pub(crate) fn stand_in_only(reason: &str) -> Option<Gpu> {
    if stand_in().is_none() || std::env::var_os("LARDER_TEST_AS_REAL").is_some() {
        println!("skipped: {} on a real driver: {reason}", this_test());
        return None;
    }
    Some(portable())
}

/// Takes a turn on NVIDIA's driver, for a rule that the stand-in does not claim to obey. On the stand-in, prints the
/// reason why the test is skipped, and returns `None`.
pub(crate) fn real_only(reason: &str) -> Option<Gpu> {
    if stand_in().is_some() {
        println!("skipped: {} on the stand-in: {reason}", this_test());
        return None;
    }
    Some(portable())
}

/// Prints the answer to a question in the form that `cuda/hardware/run` collects, and whether the rule holds. Returns
/// `holds`.
pub(crate) fn answer(question: &str, answer: &str, number: &str, rule: &str, holds: bool) -> bool {
    let verdict = if holds { "holds" } else { "FALLS" };
    println!("answer: {question} | {answer} | {number} | {verdict}: {rule}");
    holds
}

pub(crate) fn absent_device() -> i32 {
    basic::device_count().expect("a count") + 7
}

fn this_test() -> String {
    let thread = std::thread::current();
    thread.name().unwrap_or("a test").to_owned()
}

impl Gpu {
    pub(crate) const fn context(&self) -> ContextHandle {
        self.context
    }

    /// On the stand-in, sets how many bytes of host memory can be pinned.
    pub(crate) fn may_pin(&self, bytes: u64) {
        if let Some(stand_in) = self.stand_in {
            stand_in.set_pinned(bytes);
        }
    }

    /// On the stand-in, sets whether host and devices may use managed memory at the same time.
    pub(crate) fn manages_concurrently(&self, on: bool) {
        if let Some(stand_in) = self.stand_in {
            stand_in.managed_concurrently(on);
        }
    }

    /// On the stand-in, defers queued work until a call forces it or chance lets it run.
    pub(crate) fn defer(&self, seed: u64) {
        if let Some(stand_in) = self.stand_in {
            stand_in.schedule_deferred(seed ^ self::seed().unwrap_or(0));
        }
    }

    /// Announces that this test misuses the driver, which the stand-in may report.
    pub(crate) fn expect_findings(&self) {
        self.findings_expected.set(true);
    }

    /// Returns the number of a second device. If there is none, prints that the test is skipped, and returns `None`.
    pub(crate) fn second_device(&self) -> Option<i32> {
        if basic::device_count().expect("a count") > 1 {
            return Some(1);
        }
        println!("skipped: needs two devices");
        None
    }

    fn check_left(&self, stand_in: &StandIn) {
        stand_in.schedule_eagerly();
        context::set(self.context).expect("the test's context");
        context::synchronize().expect("work that ends well");
        let mut left = stand_in.alive();
        left.retain(|alive| alive.kind != "context");
        let found = stand_in.findings();
        stand_in.clear_findings();
        assert!(left.is_empty(), "left behind: {left:?}");
        let allowed = self.findings_expected.get() || found.is_empty();
        assert!(allowed, "the stand-in found: {found:?}");
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Some(stand_in) = self.stand_in {
            self.check_left(stand_in);
        }
        context::set(ContextHandle::NULL).expect("no current context");
    }
}
