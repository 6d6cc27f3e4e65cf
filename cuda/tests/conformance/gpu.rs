//! The one driver of this process and its turn: tests run one after another, each with the primary
//! context of device 0 current, and each leaves nothing behind.
//!
//! `LARDER_CUDA_DRIVER=real` takes NVIDIA's driver; anything else the stand-in, which lies beside
//! the test's program.

use std::{
    cell::Cell,
    ffi::{CString, c_char},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use larder_cuda_abi::{ContextHandle, stand_in::KernelBody};
use libloading::Library;

use crate::{
    api::{basic, context},
    kernels,
};

/// Memory of each of the stand-in's devices.
pub(crate) const STAND_IN_BYTES: u64 = 16 << 30;
/// How many devices the stand-in has.
pub(crate) const STAND_IN_DEVICES: u32 = 2;

/// The stand-in's control interface.
#[derive(Debug)]
pub(crate) struct StandIn(Library);

impl StandIn {
    fn control<F: Copy>(&self, name: &str) -> F {
        let name = format!("larder_stand_in_{name}");
        // SAFETY: each caller names the documented type of that control.
        let found = unsafe { self.0.get::<F>(name.as_bytes()) };
        *found.unwrap_or_else(|error| panic!("no control {name}: {error}"))
    }

    /// Forgets everything.
    fn reset(&self) {
        let call = self.control::<unsafe extern "C" fn(u32, u64)>("reset");
        // SAFETY: takes numbers.
        unsafe { call(STAND_IN_DEVICES, STAND_IN_BYTES) }
    }

    /// Eager without a seed; else queued work runs only when something forces it, or by chance.
    fn schedule(&self, seed: Option<u64>) {
        let call = self.control::<unsafe extern "C" fn(u32, u64)>("schedule");
        // SAFETY: takes numbers.
        unsafe { call(u32::from(seed.is_some()), seed.unwrap_or(0)) }
    }

    fn text(&self, name: &str) -> String {
        let call = self.control::<unsafe extern "C" fn(*mut c_char, u64) -> u64>(name);
        // SAFETY: null is allowed for a length of 0.
        let length = unsafe { call(core::ptr::null_mut(), 0) };
        let mut text = vec![0_u8; usize::try_from(length).expect("a short text")];
        // SAFETY: as many bytes as said may be written.
        let now = unsafe { call(text.as_mut_ptr().cast(), length) };
        assert_eq!(now, length, "the text of {name} changed between two calls");
        String::from_utf8(text).expect("text")
    }

    /// All that exists, a line a kind.
    pub(crate) fn alive(&self) -> String {
        self.text("alive")
    }

    /// Misuses found.
    pub(crate) fn findings(&self) -> String {
        self.text("findings")
    }

    fn clear_findings(&self) {
        let call = self.control::<unsafe extern "C" fn()>("clear_findings");
        // SAFETY: takes nothing.
        unsafe { call() }
    }

    fn kernel(&self, name: &str, body: KernelBody) {
        let call = self.control::<unsafe extern "C" fn(*const c_char, KernelBody) -> u32>("kernel");
        let name = CString::new(name).expect("a name");
        // SAFETY: a text with its NUL, and a body that does as `kernels` says.
        let answer = unsafe { call(name.as_ptr(), body) };
        assert_eq!(answer, 0, "no kernel {name:?}");
    }
}

/// Opens the driver, once a process, so that the binding finds it; `None` is NVIDIA's.
pub(crate) fn open_driver() -> Option<&'static StandIn> {
    static DRIVER: OnceLock<Option<StandIn>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            if std::env::var("LARDER_CUDA_DRIVER").as_deref() == Ok("real") {
                return None;
            }
            let program = std::env::current_exe().expect("this program's path");
            let folder = program.parent().expect("its folder");
            let path = folder.join("liblarder_cuda_stand_in.so");
            // SAFETY: our own library, whose start does nothing.
            let library = unsafe { Library::new(&path) };
            let library = library.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let stand_in = StandIn(library);
            stand_in.control::<unsafe extern "C" fn() -> u32>("version");
            Some(stand_in)
        })
        .as_ref()
}

/// Gives the stand-in the bodies of the kernels; a real driver has them from the PTX.
pub(crate) fn register_kernels() {
    if let Some(stand_in) = open_driver() {
        stand_in.kernel("fill_u32", kernels::fill_body);
        stand_in.kernel("add_u32", kernels::add_body);
    }
}

/// The primary context of device 0, kept for the whole process.
static TURN: Mutex<Option<ContextHandle>> = Mutex::new(None);

/// Waits for its turn, as a process that uses no driver itself (its child does).
pub(crate) fn turn() -> MutexGuard<'static, Option<ContextHandle>> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One test's turn on the driver.
#[derive(Debug)]
pub(crate) struct Gpu {
    context: ContextHandle,
    stand_in: Option<&'static StandIn>,
    findings_expected: Cell<bool>,
    _turn: MutexGuard<'static, Option<ContextHandle>>,
}

/// The driver, for a test that NVIDIA's passes too.
pub(crate) fn portable() -> Gpu {
    let mut turn = turn();
    let failed_before = TURN.is_poisoned();
    TURN.clear_poison();
    let stand_in = open_driver();
    if let Some(stand_in) = stand_in.filter(|_| failed_before) {
        stand_in.reset();
        *turn = None;
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

/// The stand-in, for a test that would say nothing about NVIDIA's driver; `None` there, after a
/// line that says why.
pub(crate) fn stand_in_only(reason: &str) -> Option<Gpu> {
    if open_driver().is_none() {
        println!("skipped on a real driver: {reason}");
        return None;
    }
    Some(portable())
}

impl Gpu {
    /// The primary context of device 0.
    pub(crate) const fn context(&self) -> ContextHandle {
        self.context
    }

    /// On the stand-in queued work now waits until something forces it, or chance lets it run.
    pub(crate) fn defer(&self, seed: u64) {
        if let Some(stand_in) = self.stand_in {
            stand_in.schedule(Some(seed));
        }
    }

    /// What this test does is a misuse that the stand-in may report.
    pub(crate) fn expect_findings(&self) {
        self.findings_expected.set(true);
    }

    /// A second device's number; `None` after a line that says so.
    pub(crate) fn second_device(&self) -> Option<i32> {
        if basic::device_count().expect("a count") > 1 {
            return Some(1);
        }
        println!("skipped: needs two devices");
        None
    }

    fn check_left(&self, stand_in: &StandIn) {
        stand_in.schedule(None);
        context::set(self.context).expect("the test's context");
        context::synchronize().expect("work that ends well");
        let left = stand_in.alive();
        let left: Vec<_> = left
            .lines()
            .filter(|line| !line.starts_with("context "))
            .collect();
        let found = stand_in.findings();
        stand_in.clear_findings();
        assert!(left.is_empty(), "left behind: {left:?}");
        let allowed = self.findings_expected.get() || found.is_empty();
        assert!(allowed, "the stand-in found: {found}");
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
