//! Programs in several threads over one allocator, each on its own streams or all on the same ones. Sometimes a thread
//! passes a block on: it records an event after its work, and another thread's stream waits for the event.

use std::thread;

use larder_cuda::driver::StandIn;

use crate::common::{DEVICE_BYTES, number, ran_in_child};
use crate::programs::draw::{Draw, Knobs};
use crate::programs::player::{Player, World, streams};
use crate::programs::words::Outcome;
use crate::programs::{Program, Schedule, apart_with_kernels, left};

/// Number of programs in an ordinary run.
const PROGRAMS: u64 = 30;

const ACTS: usize = 100;

/// Runs all threads of one program, and then frees the blocks that no thread received.
fn run(control: Option<&'static StandIn>, seed: u64) -> Outcome {
    let knobs = Knobs {
        mail: true,
        streams: seed % 2 == 1,
        ..Knobs::default()
    };
    let program = Program::draw(seed, Knobs::default());
    let threads = 2 + seed as usize % 3;
    let world = World::new(control, threads)?;
    let shared = streams(&world.context, program.streams)?;
    let mut last = Player::new(&world, streams(&world.context, 1)?)?;
    last.act(&program.memory)?;
    last.is_drawn = true;
    let memory = last.memory()?.clone();
    let play = |mine: usize| -> Outcome {
        // On shared streams, threads meet in one arena and in one stream's steps.
        let of_own = seed % 4 < 2;
        let queues = match of_own {
            true => streams(&world.context, program.streams)?,
            false => shared.clone(),
        };
        let mut player = Player::new(&world, queues)?;
        player.add_memory("m", memory.clone());
        player.is_drawn = true;
        let knobs = Knobs {
            streams: knobs.streams && of_own,
            ..knobs
        };
        let mut draw = Draw::new(seed * 100 + mine as u64, program.streams, knobs);
        (0..ACTS).try_for_each(|_| player.act(&draw.act()))?;
        player.end(mine.is_multiple_of(2))
    };
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let play = &play;
        let started: Vec<_> = (0..threads)
            .map(|mine| scope.spawn(move || play(mine)))
            .collect();
        let ended = started.into_iter().map(|thread| thread.join());
        ended
            .map(|ended| ended.unwrap_or_else(|_| Err("a panic".into())))
            .collect()
    });
    drop(memory);
    outcomes.into_iter().collect::<Outcome<Vec<()>>>()?;
    let mut index = 0;
    while !world.mail.lock().unwrap().is_empty() {
        index += 1;
        last.act(&format!("receive last{index} a"))?;
    }
    last.let_go()?;
    drop(shared);
    // A block that several streams used counts as live until the allocator has seen that their events have happened.
    for act in [
        "release 0",
        "sync",
        "release all",
        "is live 0",
        "is reserved 0",
    ] {
        last.is_drawn = false;
        last.act(act)?;
    }
    last.end(false)
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
            let outcome = run(control, seed).map_err(|error| error.to_string());
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
