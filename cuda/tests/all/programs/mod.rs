//! Programs over allocators, as text: drawn at random, or written in scripts.
//!
//! A program is a list of acts (operations), one per line: `alloc x a 3M`, `set x a 7`, `order b a`, `free x b`.
//! Streams are `a` to `d`; blocks and other things may have any name; sizes take `K`, `M` and `G`. Each act is
//! described where it is played: `blocks` and `player` (blocks and streams), `uses` (uses of blocks),
//! `memories` (allocators, limits), `sleep`, `things` (buffers, exports, steps), `reserved` (reserved buffers),
//! `graphs` (captures), `expect` (numbers, the stand-in's control).
//!
//! The player orders its own uses of a block with events (`order`), does each act on the device and on a copy of
//! the block on the host, and compares the bytes. It also compares the allocator's counters with its blocks. Whatever
//! order the device chooses, the results must be the same as if the acts were done one after another, and no two uses
//! of the same memory may conflict.
//!
//! Programs are drawn from a seed (`draw`); knobs choose the acts. Any part of a program is itself a program, so a
//! failing program can be shortened until every remaining act is needed (`shrink`), and may then be written into a
//! script. `scripts` plays the cases of a text file.
//!
//! `LARDER_PROGRAMS` is the number of programs, and `LARDER_PROGRAM_SEED` is the first seed. On the stand-in, programs
//! run eagerly and in several deferred orders. A GPU has its own order, in which only the results are checked.

use crate::common;

mod blocks;
mod buffer;
pub(crate) mod draw;
mod expect;
mod graphs;
pub(crate) mod kernels;
pub(crate) mod memories;
pub(crate) mod order;
pub(crate) mod player;
mod reserved;
pub(crate) mod scripts;
mod shrink;
mod sleep;
mod things;
mod threads;
mod transfers;
mod uses;
pub(crate) mod words;

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::RwLockWriteGuard;

use common::{DEVICE_BYTES, alone, apart, driver, number, ran_in_child};
use draw::Knobs;
use larder_cuda::driver::StandIn;
use player::{Player, World, streams};
use words::Outcome;

/// Number of programs in an ordinary run.
const PROGRAMS: u64 = 50;

/// Number of deferred orders for each program.
const ORDERS: u64 = 3;

#[derive(Clone, Debug)]
pub(crate) struct Program {
    seed: u64,
    /// The act that makes the allocator.
    memory: String,
    streams: usize,
    /// The first stream is the legacy default one.
    default_stream: bool,
    /// The allocator is dropped while work is queued.
    drop_early: bool,
    /// At the end, everything is freed under a low limit. Done only in the eager order, which leaves no work queued.
    drains: bool,
    /// How many times the acts are done, each time as a step of the last stream. With 0: once, without a step.
    steps: usize,
    acts: Vec<String>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "program {} on {} streams (default {}, dropped early {}, steps {})\n  {}",
            self.seed, self.streams, self.default_stream, self.drop_early, self.steps, self.memory
        )?;
        self.acts.iter().try_for_each(|act| writeln!(f, "  {act}"))
    }
}

fn run(control: Option<&'static StandIn>, program: &Program, at: Schedule) -> Outcome {
    let world = World::new(control, 1)?;
    let mut streams = streams(&world.context, program.streams)?;
    if program.default_stream {
        streams[0] = world.context.cudarc().default_stream();
    }
    let last = streams[program.streams - 1].clone();
    let mut player = Player::new(&world, streams)?;
    player.act(&program.memory)?;
    player.is_drawn = true;
    for round in 0..program.steps.max(1) {
        let step = (program.steps > 0).then(|| player.device().map(|device| device.step(&last)));
        let _step = step.transpose()?.transpose()?;
        for act in &program.acts {
            player
                .act(act)
                .map_err(|error| format!("step {round}, {error}"))?;
        }
    }
    drop(last);
    if program.drains && at == Schedule::Eager {
        player.drain()?;
    }
    player.end(program.drop_early)
}

/// The order in which the device does queued work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Schedule {
    /// A GPU's own order.
    Device,
    Eager,
    Deferred(u64),
}

impl Schedule {
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

/// Runs a program in one order, and returns what went wrong.
fn wrong(control: Option<&'static StandIn>, program: &Program, at: Schedule) -> Option<String> {
    if let Some(control) = control {
        // Removes what an earlier program left, including its streams, all of which the stand-in remembers.
        control.reset(2, DEVICE_BYTES);
        control.clear_findings();
        at.choose(control, program.seed);
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| run(control, program, at)));
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

/// Reserves the driver for this test. If it is the stand-in, also registers the kernels and returns its control.
fn apart_with_kernels() -> (RwLockWriteGuard<'static, ()>, Option<&'static StandIn>) {
    let turn = apart();
    let control = driver().stand_in();
    if let Some(control) = control {
        control.clear_failures();
        kernels::register(control);
    }
    (turn, control)
}

/// Draws programs and runs each in up to `orders` of the available orders.
fn run_drawn(control: Option<&'static StandIn>, knobs: Knobs, orders: usize) {
    let first = number("LARDER_PROGRAM_SEED", 0);
    let all = Schedule::all(control);
    for seed in first..first + number("LARDER_PROGRAMS", PROGRAMS) {
        let program = Program::draw(seed, knobs);
        for order in 0..orders.min(all.len()) {
            let at = all[(seed as usize + order) % all.len()];
            if let Some(why) = wrong(control, &program, at) {
                let short = shrink::shrink(&program, |part| wrong(control, part, at).is_some());
                let still = wrong(control, &short, at);
                panic!("seed {seed}, {at:?}: {why}\nshortened ({still:?}) to {short}");
            }
        }
    }
}

/// Draws programs for a stand-in that the test has to itself, and runs each in two of its orders.
fn run_drawn_alone(knobs: Knobs) {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    kernels::register(control);
    run_drawn(Some(control), knobs, 2);
}

#[test]
fn programs_give_what_their_acts_give_one_after_another() {
    if ran_in_child() {
        return;
    }
    let (_turn, control) = apart_with_kernels();
    let refusals = Knobs {
        refusals: true,
        ..Knobs::default()
    };
    run_drawn(control, refusals, usize::MAX);
}

#[test]
fn programs_that_sleep_give_what_they_give_awake() {
    if ran_in_child() {
        return;
    }
    let (_turn, control) = apart_with_kernels();
    let sleeps = Knobs {
        refusals: true,
        sleeps: true,
        ..Knobs::default()
    };
    run_drawn(control, sleeps, 1);
}

#[test]
fn programs_of_all_acts_give_what_these_give_one_after_another() {
    run_drawn_alone(Knobs {
        refusals: false,
        sleeps: true,
        limits: true,
        captures: true,
        buffers: true,
        exports: true,
        streams: true,
        reserved: true,
        ..Knobs::default()
    });
}

/// Reserved buffers beside blocks: units and blocks take each other's idle memory, whatever the driver refuses.
#[test]
fn programs_that_reserve_commit_and_decommit_give_what_their_acts_give_one_after_another() {
    run_drawn_alone(Knobs {
        refusals: true,
        sleeps: true,
        reserved: true,
        ..Knobs::default()
    });
}

/// Runs programs whose limits fall and rise. At each `stable` act, the bytes reported as stable must equal those that
/// remain under a limit of 0; once everything is freed, a shrink must need no further call.
fn run_with_limits(knobs: Knobs) {
    run_drawn_alone(Knobs {
        limits: true,
        ..knobs
    });
}

#[test]
fn am_4_stable_is_what_a_limit_of_0_leaves_for_every_random_heap() {
    run_with_limits(Knobs {
        captures: true,
        ..Knobs::default()
    });
}

#[test]
fn am_4_stable_is_what_a_limit_of_0_leaves_of_reserved_buffers() {
    run_with_limits(Knobs {
        reserved: true,
        ..Knobs::default()
    });
}

#[test]
fn am_4_stable_is_what_a_limit_of_0_leaves_of_pinned_memory() {
    run_with_limits(Knobs {
        buffers: true,
        ..Knobs::default()
    });
}

#[test]
fn am_4_stable_is_what_a_limit_of_0_leaves_of_the_hosts_side() {
    run_with_limits(Knobs {
        host: true,
        ..Knobs::default()
    });
}

/// Checks F8 (docs/CONFORMANCE.md) on streams: the place, the size and the contents of each block.
#[test]
fn f8_random_blocks_on_three_streams_keep_their_bytes_sizes_and_places() {
    run_drawn_alone(Knobs {
        host: true,
        ..Knobs::default()
    });
}
