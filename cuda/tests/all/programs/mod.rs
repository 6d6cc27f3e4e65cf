//! Random programs over a device allocator: in any order that the device chooses, each has the result of
//! the same operations one after another on the host, and no two uses of the same memory conflict.
//!
//! A program is a list of acts (`program`), drawn from a seed (`draw`). The runner (`run`, `uses`) orders
//! its own uses of a block by events (`order`), does each act on the device and on a copy of the block on
//! the host, and compares the results. Any part of the list is a program too, so one that fails is
//! shortened until every act of it is needed (`shrink`).
//!
//! `LARDER_PROGRAMS` is the number of programs, `LARDER_PROGRAM_SEED` the first seed. On the stand-in each
//! runs eagerly and in several deferred orders; a GPU has its own order, and results are compared.

use crate::common;

mod buffer;
mod draw;
mod endings;
pub(crate) mod kernels;
pub(crate) mod order;
mod program;
pub(crate) mod run;
mod several;
mod shrink;
mod sleep;
mod threads;
mod transfers;
mod uses;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::RwLockWriteGuard;

use common::{DEVICE_BYTES, apart, driver, number, ran_in_child};
use larder_cuda::driver::StandIn;
use program::Program;

/// Programs of the ordinary run.
const PROGRAMS: u64 = 50;

/// Deferred orders of each.
const ORDERS: u64 = 3;

/// The order in which the device does queued work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Schedule {
    /// The device's own.
    Device,
    Eager,
    Deferred(u64),
}

impl Schedule {
    /// Those that a program runs in here.
    fn all(control: Option<&StandIn>) -> Vec<Self> {
        if control.is_none() {
            return vec![Self::Device];
        }
        let deferred = (0..ORDERS).map(Self::Deferred);
        std::iter::once(Self::Eager).chain(deferred).collect()
    }

    fn choose(self, control: &StandIn, program: u64) {
        match self {
            Self::Deferred(seed) => control.schedule_deferred(program * ORDERS + seed),
            Self::Eager | Self::Device => control.schedule_eagerly(),
        }
    }
}

/// Returns the fault of a program in one order; `None` if there is none.
fn wrong(control: Option<&'static StandIn>, program: &Program, at: Schedule) -> Option<String> {
    if let Some(control) = control {
        // Whatever an earlier one left, and the stand-in remembers every stream there was.
        control.reset(2, DEVICE_BYTES);
        control.clear_findings();
        at.choose(control, program.seed);
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| run::run(control, program)));
    let mut wrong = match outcome {
        Ok(Ok(())) => Vec::new(),
        Ok(Err(error)) => vec![error.to_string()],
        Err(_) => vec!["a panic".to_owned()],
    };
    if let Some(control) = control {
        control.clear_failures();
        control.schedule_eagerly();
        wrong.extend(left(control));
    }
    (!wrong.is_empty()).then(|| wrong.join("\n"))
}

/// Returns findings about a finished program, and the objects that it left behind.
fn left(control: &StandIn) -> Vec<String> {
    let mut wrong = control.findings();
    wrong.truncate(3);
    let alive = control.alive().into_iter();
    wrong.extend(
        alive
            .filter(|alive| alive.kind != "context")
            .map(|alive| format!("left: {alive:?}")),
    );
    if control.used(0) != 0 {
        wrong.push(format!("left: {} bytes", control.used(0)));
    }
    wrong
}

/// The driver for this test alone, and its control if it is the stand-in, which has the kernels then.
fn apart_with_kernels() -> (RwLockWriteGuard<'static, ()>, Option<&'static StandIn>) {
    let turn = apart();
    let control = driver().stand_in();
    if let Some(control) = control {
        control.clear_failures();
        kernels::register(control);
    }
    (turn, control)
}

#[test]
fn programs_give_what_their_acts_give_one_after_another() {
    if ran_in_child() {
        return;
    }
    let (_turn, control) = apart_with_kernels();
    let first = number("LARDER_PROGRAM_SEED", 0);
    for seed in first..first + number("LARDER_PROGRAMS", PROGRAMS) {
        let program = Program::draw(seed);
        for at in Schedule::all(control) {
            if let Some(why) = wrong(control, &program, at) {
                let short = shrink::shrink(&program, |part| wrong(control, part, at).is_some());
                let still = wrong(control, &short, at);
                panic!("seed {seed}, {at:?}: {why}\nshortened ({still:?}) to {short}");
            }
        }
    }
}
