//! What every exported function does first and last.

use std::panic::{AssertUnwindSafe, catch_unwind};

use larder_cuda_abi::Code;

use crate::driver::Session;
use crate::thread;

/// Functions that work before `cuInit`.
const BEFORE_INIT: [&str; 4] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Makes one call of the driver's function `name`: counts it, refuses it if that was asked for,
/// lets queued work go on by chance if the schedule is deferred, then runs `body`.
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

/// A call of the control interface. Not from a kernel's body: it would wait for itself.
pub(crate) fn control<R>(body: impl FnOnce(&mut Session) -> R) -> R {
    let mut session = Session::begin();
    body(&mut session)
}

/// A defect of ours is an answer and a finding, never a panic that crosses into C.
fn guarded(name: &str, body: impl FnOnce(&mut Session) -> Result<(), Code>) -> Code {
    if thread::is_closed() {
        // From a kernel's body or a host function: the driver may be locked by this very thread.
        return Code::NOT_PERMITTED;
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
