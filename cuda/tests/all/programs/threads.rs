//! Programs in several threads over one allocator, each on streams of its own. Sometimes one hands a block
//! over: it records an event behind its work, and another thread's stream continues from there.

use std::sync::Mutex;
use std::thread;

use larder_cuda::{Context, DeviceAllocator};
use larder_model::Random;

use crate::common::{DEVICE_BYTES, number, ran_in_child};
use crate::programs::program::{Program, SLOTS};

use crate::programs::run::{Outcome, Parcel, Runner, streams};
use crate::programs::{Schedule, apart_with_kernels, left};

/// Programs of the ordinary run.
const PROGRAMS: u64 = 30;

/// Blocks handed to a thread and not yet taken.
type Mailbox = Mutex<Vec<Parcel>>;

/// One thread: a program, on as many streams as it has.
fn play(
    (context, memory): (&Context, &DeviceAllocator),
    seed: u64,
    mine: usize,
    mailboxes: &[Mailbox],
) -> Outcome {
    let program = Program::draw(seed * 100 + mine as u64);
    let mut random = Random::new(program.seed);
    let mut runner = Runner::new(context, memory, streams(context, program.streams)?)?;
    for act in &program.acts {
        let what = random.index(8);
        if what == 0
            && let Some(parcel) = runner.send(random.index(SLOTS))?
        {
            let to = random.index(mailboxes.len());
            mailboxes[to].lock().unwrap().push(parcel);
        }
        if what < 3 {
            let parcel = mailboxes[mine].lock().unwrap().pop();
            if let Some(parcel) = parcel {
                runner.receive(parcel, random.index(program.streams))?;
            }
        }
        runner
            .act(*act)
            .map_err(|error| format!("{act:?}: {error}"))?;
    }
    runner.end(program.drop_early)
}

/// All threads of one program, and what nobody took.
fn run(seed: u64) -> Result<(), String> {
    let wrong = |error: Box<dyn core::error::Error>| error.to_string();
    let mut random = Random::new(seed);
    let context = Context::new(0).map_err(|error| error.to_string())?;
    let config = Program::draw(seed).config;
    let memory = DeviceAllocator::with_config(&context, config);
    let memory = memory.map_err(|error| error.to_string())?;
    let mailboxes: Vec<Mailbox> = (0..2 + random.index(2))
        .map(|_| Mailbox::default())
        .collect();
    let outcomes: Vec<Result<(), String>> = thread::scope(|scope| {
        let started: Vec<_> = (0..mailboxes.len())
            .map(|mine| {
                let (shared, mailboxes) = ((&context, &memory), &mailboxes);
                scope.spawn(move || play(shared, seed, mine, mailboxes).map_err(wrong))
            })
            .collect();
        let ended = started.into_iter().map(|thread| thread.join());
        ended
            .map(|ended| ended.unwrap_or_else(|_| Err("a panic".to_owned())))
            .collect()
    });
    let mut last =
        Runner::new(&context, &memory, streams(&context, 1).map_err(wrong)?).map_err(wrong)?;
    for parcel in mailboxes
        .into_iter()
        .flat_map(|mailbox| mailbox.into_inner().unwrap())
    {
        last.receive(parcel, 0).map_err(wrong)?;
    }
    last.end(false).map_err(wrong)?;
    outcomes.into_iter().collect::<Result<(), String>>()?;
    // What several streams used counts until their events were seen to have passed.
    memory.release(0);
    context.synchronize().map_err(|error| error.to_string())?;
    memory.release(0);
    match memory.stats().live_bytes {
        0 => Ok(()),
        live => Err(format!("{live} bytes are still live")),
    }
}

#[test]
fn threads_hand_blocks_over_and_every_block_keeps_its_bytes() {
    if ran_in_child() {
        return;
    }
    let (_turn, control) = apart_with_kernels();
    let first = number("LARDER_PROGRAM_SEED", 0);
    let count = number("LARDER_PROGRAMS", PROGRAMS * 10).div_ceil(10);
    for seed in first..first + count {
        for at in Schedule::all(control) {
            if let Some(control) = control {
                control.reset(2, DEVICE_BYTES);
                control.clear_findings();
                at.choose(control, seed);
            }
            let outcome = run(seed);
            let found = control.map_or(Vec::new(), |control| {
                control.schedule_eagerly();
                left(control)
            });
            assert_eq!(
                (outcome, found),
                (Ok(()), Vec::new()),
                "seed {seed}, {at:?}"
            );
        }
    }
}
