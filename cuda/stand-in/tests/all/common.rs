//! Helpers for all tests.

use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_cuda_abi::Code;

use crate::driver::{cuMemcpyDtoH_v2, larder_stand_in_alive, larder_stand_in_findings};

/// Granularity of virtual memory.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// Waits until no other test uses the driver, and keeps others out.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[track_caller]
pub(crate) fn ok(code: Code) {
    assert_eq!(code, Code::SUCCESS);
}

/// Returns the value that a call writes to its first argument.
#[track_caller]
pub(crate) fn made<T: Default>(create: impl FnOnce(&mut T) -> Code) -> T {
    let mut value = T::default();
    ok(create(&mut value));
    value
}

#[track_caller]
pub(crate) fn read(from: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; count];
    ok(cuMemcpyDtoH_v2(bytes.as_mut_ptr() as usize, from, count));
    bytes
}

fn text(of: impl Fn(*mut u8, u64) -> u64) -> String {
    let mut buf = vec![0; of(null_mut(), 0) as usize];
    of(buf.as_mut_ptr(), buf.len() as u64);
    String::from_utf8(buf).unwrap()
}

pub(crate) fn findings() -> String {
    text(|buf, len| larder_stand_in_findings(buf, len))
}

pub(crate) fn alive() -> String {
    text(|buf, len| larder_stand_in_alive(buf, len))
}

/// A host function that waits for the test.
pub(crate) mod gate {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    static OPEN: AtomicBool = AtomicBool::new(true);
    static PASSED: AtomicU32 = AtomicU32::new(0);

    /// Returns once the gate is open.
    pub(crate) extern "C" fn wait(_: *mut c_void) {
        while !OPEN.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        PASSED.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn shut() {
        OPEN.store(false, Ordering::SeqCst);
        PASSED.store(0, Ordering::SeqCst);
    }

    pub(crate) fn open() {
        OPEN.store(true, Ordering::SeqCst);
    }

    /// Waits until `passed` host functions have passed since the gate was shut.
    pub(crate) fn wait_for(passed: u32) {
        let start = Instant::now();
        while PASSED.load(Ordering::SeqCst) < passed {
            assert!(start.elapsed() < Duration::from_secs(60), "it never ran");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
