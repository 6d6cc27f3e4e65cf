//! The frame of all exported functions: it counts or refuses the call, takes the lock, runs the
//! body, and catches panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use larder_cuda_abi::Code;

use crate::driver::{self, Session};
use crate::ffi::Out;
use crate::thread;

/// Functions that work before `cuInit`.
const BEFORE_INIT: [&str; 6] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
];

/// Makes one call of the driver's function `name`: counts it, refuses it if a rule says so, may run
/// some queued work if the schedule is deferred, then runs `body`. A panic in the stand-in becomes
/// an error code and a finding, so that it does not unwind into C.
pub(crate) fn call(
    name: &'static str,
    body: impl FnOnce(&mut Session) -> Result<(), Code>,
) -> Code {
    if thread::is_closed() {
        // The caller is a kernel's body or a host function, so this thread may already hold the
        // driver's lock.
        return Code::NOT_PERMITTED;
    }
    if driver::is_of_another_process() {
        return Code::NOT_INITIALIZED;
    }
    thread::set_closed(true);
    let mut session = Session::begin();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        session.calls.note(name)?;
        if !session.initialised && !BEFORE_INIT.contains(&name) {
            return Err(Code::NOT_INITIALIZED);
        }
        session.check_rules(name)?;
        session.chance();
        let outcome = body(&mut session);
        session.progress();
        outcome
    }));
    thread::set_closed(false);
    let outcome = outcome.unwrap_or_else(|_| {
        session.findings.add(format!(
            "the stand-in itself failed in {name}: please report it"
        ));
        Err(Code::UNKNOWN)
    });
    session.changed();
    outcome.err().unwrap_or(Code::SUCCESS)
}

/// Makes a call with one result. If the caller gives no place for it, the call only returns an
/// error.
pub(crate) fn answer<T>(
    name: &'static str,
    place: Out<T>,
    body: impl FnOnce(&mut Session) -> Result<T, Code>,
) -> Code {
    call(name, |session| {
        place.check()?;
        place.give(body(session)?)
    })
}

/// Makes a call of the control interface. A kernel's body must not make one, since it would
/// deadlock.
///
/// Does nothing in a forked child.
pub(crate) fn control<R: Default>(body: impl FnOnce(&mut Session) -> R) -> R {
    if driver::is_of_another_process() {
        return R::default();
    }
    body(&mut Session::begin())
}

/// Makes a call of the control interface that can fail.
pub(crate) fn try_control(body: impl FnOnce(&mut Session) -> Result<(), Code>) -> Code {
    let outcome = control(|session| Some(body(session)));
    outcome.map_or(Code::NOT_INITIALIZED, |outcome| {
        outcome.err().unwrap_or(Code::SUCCESS)
    })
}
