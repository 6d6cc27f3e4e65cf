//! A long run: players on streams that are created and destroyed share one allocator for the given number of
//! operations. Nothing may get lost, get mixed up or grow.
//!
//! The operations are acts of every kind from drawn [`programs`](crate::programs). Players take turns act by act, or
//! run on one thread each. Between rounds the world is checked, and sometimes it sleeps, or everything is released and
//! the stand-in must hold nothing (`checks`).
//!
//! `LARDER_OPERATIONS` is the number of operations, `LARDER_OPERATION_SEED` the first seed. If players take turns the
//! seed determines everything; threads interleave freely.

mod checks;

use std::sync::Arc;
use std::thread;

use larder_cuda::DeviceAllocator;
use larder_cuda::driver::StandIn;
use larder_model::Random;

use crate::common::{alone, assert_clean, number, ran_in_child};
use crate::programs::draw::{Draw, Knobs};
use crate::programs::kernels;
use crate::programs::player::{Player, World, streams};
use crate::programs::words::Outcome;
use checks::Sizes;

const OPERATIONS: u64 = 4000;

/// Numbers of players in a world and of streams of each player.
const PLAYERS: usize = 3;
const STREAMS: usize = 3;

/// Number of operations of all players between two checks.
const ROUND: u64 = 120;

/// Number of rounds between two releases of everything, at first and later.
const QUIET: [u64; 2] = [3, 24];

const WARM_UP: u64 = 6;

/// Whether queued work is deferred, and how the allocator is configured.
const KINDS: [(bool, &str); 4] = [
    (false, "budget=32M"),
    (true, "budget=32M arenas=always"),
    (true, "arenas=always"),
    (false, ""),
];

struct Run {
    control: &'static StandIn,
    is_deferred: bool,
    random: Random,
    world: Arc<World>,
    players: Vec<(Player, Draw)>,
    /// Bytes of the device and pinned bytes that exist in addition to the allocator's memory.
    base_bytes: [u64; 2],
}

impl Run {
    fn new(control: &'static StandIn, kind: &str, is_deferred: bool, seed: u64) -> Outcome<Self> {
        let knobs = Knobs {
            limits: true,
            captures: true,
            buffers: true,
            streams: true,
            mail: true,
            reserved: true,
            ..Knobs::default()
        };
        let world = World::new(control.into(), PLAYERS)?;
        let mut players: Vec<(Player, Draw)> = Vec::new();
        for number in 0..PLAYERS {
            let mut player = Player::new(&world, streams(&world.context, STREAMS)?)?;
            match players.first() {
                Some((first, _)) => player.add_memory("m", first.memory()?.clone()),
                None => {
                    for act in ["process 1024G", "tenant t 1024G"] {
                        player.act(act)?;
                    }
                    player.act(&format!("memory m in=t pinned {kind}"))?;
                }
            }
            player.is_drawn = true;
            let draw = Draw::new(seed * 100 + number as u64, STREAMS, knobs);
            players.push((player, draw));
        }
        Ok(Self {
            base_bytes: [control.used(0), checks::alive(control, "pinned").1],
            control,
            is_deferred,
            random: Random::new(seed),
            world,
            players,
        })
    }

    fn memory(&self) -> Outcome<DeviceAllocator> {
        self.players[0].0.device()
    }

    /// Plays at least the given number of operations, and stops once everything has been released.
    fn play(&mut self, operations: u64) -> Outcome {
        let mut sizes = Sizes::default();
        for round in 1.. {
            match self.random.index(3) == 0 {
                true => self.in_threads()?,
                false => self.in_turns()?,
            }
            for (player, _) in &mut self.players {
                player.end_captures()?;
            }
            self.check()?;
            if self.random.index(8) == 0 {
                self.sleep()?;
            }
            if round % QUIET[usize::from(round > 4 * QUIET[0])] == 0 {
                sizes.take(self.quiet()?, round <= WARM_UP)?;
                if round * ROUND >= operations {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn in_turns(&mut self) -> Outcome {
        for _ in 0..ROUND {
            let index = self.random.index(PLAYERS);
            let (player, draw) = &mut self.players[index];
            player
                .act(&draw.act())
                .map_err(|error| format!("player {index}: {error}"))?;
        }
        Ok(())
    }

    fn in_threads(&mut self) -> Outcome {
        thread::scope(|scope| {
            let play = |player: &mut Player, draw: &mut Draw| -> Outcome {
                player.world.context.cudarc().bind_to_thread()?;
                (0..ROUND / PLAYERS as u64).try_for_each(|_| player.act(&draw.act()))?;
                // The thread that began a capture has to end it.
                player.end_captures()
            };
            let threads = self.players.iter_mut();
            let threads: Vec<_> = threads
                .map(|(player, draw)| scope.spawn(move || play(player, draw)))
                .collect();
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            ended
                .into_iter()
                .try_for_each(|ended| ended.unwrap_or_else(|_| Err("a panic".into())))
        })
    }
}

fn run(control: &'static StandIn, kind: (bool, &str), seed: u64, operations: u64) -> Outcome {
    let (is_deferred, kind) = kind;
    let mut run = Run::new(control, kind, is_deferred, seed)?;
    if is_deferred {
        control.schedule_deferred(seed);
    }
    run.play(operations)?;
    let players = run.players.into_iter();
    players
        .map(|(player, _)| player)
        .try_for_each(|player| player.end(false))
}

#[test]
fn a_long_run_loses_nothing_and_nothing_grows() {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    kernels::register(control);
    let operations = number("LARDER_OPERATIONS", OPERATIONS) / KINDS.len() as u64;
    let seed = number("LARDER_OPERATION_SEED", 1);
    for kind in KINDS {
        let outcome = run(control, kind, seed, operations);
        control.schedule_eagerly();
        if let Err(error) = outcome {
            panic!("seed {seed}, {kind:?}: {error}");
        }
        assert_clean(control);
    }
}
