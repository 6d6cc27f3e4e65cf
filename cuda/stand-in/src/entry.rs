//! The common frame of all exported functions: count, refuse, lock, run, and catch panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use larder_cuda_abi::Code;

use crate::driver::{self, Session};
use crate::thread;

/// Functions that work before `cuInit`.
const BEFORE_INIT: [&str; 4] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Makes one call of the driver's function `name`: counts it, refuses it if a rule says so, lets
/// queued work run by chance if the schedule is deferred, then runs `body`.
pub(crate) fn call(
    name: &'static str,
    body: impl FnOnce(&mut Session) -> Result<(), Code>,
) -> Code {
    guarded(name, |session| {
        session.calls.note(name)?;
        if !session.initialised && !BEFORE_INIT.contains(&name) {
            return Err(Code::NOT_INITIALIZED);
        }
        session.chance();
        let outcome = body(session);
        session.progress();
        outcome
    })
}

/// Makes a call of the control interface. A kernel's body must not make one: it would deadlock.
///
/// In a forked child it does nothing and answers `R::absent`.
pub(crate) fn control<R: Absent>(body: impl FnOnce(&mut Session) -> R) -> R {
    if driver::is_of_another_process() {
        return R::absent();
    }
    let mut session = Session::begin();
    body(&mut session)
}

/// The answer of a call when there is no driver to ask.
pub(crate) trait Absent {
    fn absent() -> Self;
}

impl Absent for () {
    fn absent() {}
}

impl Absent for u64 {
    fn absent() -> Self {
        0
    }
}

impl Absent for String {
    fn absent() -> Self {
        Self::new()
    }
}

impl Absent for Code {
    fn absent() -> Self {
        Self::NOT_INITIALIZED
    }
}

/// Turns a panic of the stand-in into an answer and a finding, so that none unwinds into C.
fn guarded(name: &str, body: impl FnOnce(&mut Session) -> Result<(), Code>) -> Code {
    if thread::is_closed() {
        // From a kernel's body or a host function: the driver may be locked by this very thread.
        return Code::NOT_PERMITTED;
    }
    if driver::is_of_another_process() {
        return Code::NOT_INITIALIZED;
    }
    thread::set_closed(true);
    let mut session = Session::begin();
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&mut session)));
    thread::set_closed(false);
    let code = match outcome {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            session.findings.add(format!(
                "the stand-in itself failed in {name}: please report it"
            ));
            Code::UNKNOWN
        }
    };
    session.changed();
    code
}
