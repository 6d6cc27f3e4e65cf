//! A long run: players on streams that are made and destroyed share one allocator for the requested number
//! of operations, and nothing is lost, mixed up or grows.
//!
//! A player (`player`) allocates and frees on its streams, has kernels write and check every block
//! (`stamps`), captures (`graphs`), and uses typed memory of both sides (`buffers`); limits change
//! meanwhile. Players take turns by the operation, or run in a thread each. Between rounds the world is
//! checked, and sometimes it sleeps, or everything is released and the stand-in must count nothing
//! (`checks`).
//!
//! `LARDER_OPERATIONS` is the number of operations, `LARDER_OPERATION_SEED` the first seed. If players take
//! turns a seed determines everything; threads interleave freely.

mod buffers;
mod checks;
mod graphs;
mod player;
mod stamps;

use std::sync::{Arc, Mutex};
use std::thread;

use larder_cuda::driver::StandIn;
use larder_cuda::{
    ArenaPolicy, Context, DeviceAllocator, DeviceConfig, Limits, PinnedAllocator, PinnedConfig,
};

use crate::common::{MIB, alone, assert_clean, number};

use checks::Sizes;
use larder_model::Random;
use player::{Outcome, Player, World};
use stamps::Stamps;

/// Operations of the ordinary run.
const OPERATIONS: u64 = 4000;

/// Players of a world.
const PLAYERS: u64 = 3;

/// Operations of all players from one look at the world to the next.
const ROUND: u64 = 120;

/// Rounds from one moment without any memory to the next, at first and later.
const QUIET: [u64; 2] = [3, 24];

/// Rounds of the warm-up.
const WARM_UP: u64 = 6;

/// Whether queued work waits, and how the allocator is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    deferred: bool,
    budget: bool,
}

const KINDS: [Kind; 4] = [
    Kind::new(false, true),
    Kind::new(true, true),
    Kind::new(true, false),
    Kind::new(false, false),
];

impl Kind {
    const fn new(deferred: bool, budget: bool) -> Self {
        Self { deferred, budget }
    }

    fn config(self) -> DeviceConfig {
        let config = match self.budget {
            true => DeviceConfig::with_budget(32 * MIB),
            false => DeviceConfig::new(),
        };
        let arenas = [ArenaPolicy::WhereThreadsMeet, ArenaPolicy::Always];
        DeviceConfig {
            arenas: arenas[usize::from(self.deferred)],
            check_captures: true,
            ..config
        }
    }
}

/// A world that is played in.
struct Run {
    control: &'static StandIn,
    kind: Kind,
    random: Random,
    world: Arc<World>,
    players: Vec<Player>,
    /// Bytes of the device beside the allocator's memory.
    base_bytes: u64,
}

impl Run {
    fn new(control: &'static StandIn, kind: Kind, seed: u64) -> Outcome<Self> {
        let context = Context::new(0)?;
        let limits = Limits::new(1 << 40)?;
        let tenant = limits.process().tenant("all of it", 1 << 40)?;
        let memory = DeviceAllocator::in_budget(&context, kind.config(), &tenant)?;
        let pinned =
            PinnedAllocator::in_budget(&context, PinnedConfig::default(), u64::MAX, &tenant)?;
        let world = Arc::new(World {
            stamps: Stamps::load(control, &context),
            _stream: context.cudarc().new_stream()?,
            context,
            memory,
            pinned,
            tenant,
            parcels: Mutex::default(),
        });
        let players = (0..PLAYERS).map(|number| Player::new(&world, number, seed));
        let players = players.collect::<Outcome<Vec<_>>>()?;
        Ok(Self {
            base_bytes: control.used(0),
            control,
            kind,
            random: Random::new(seed),
            world,
            players,
        })
    }

    /// Plays so many operations and more, until the world is quiet.
    fn play(&mut self, operations: u64) -> Outcome {
        let mut sizes = Sizes::default();
        for round in 1.. {
            match self.random.index(3) == 0 {
                true => self.in_threads()?,
                false => self.in_turns()?,
            }
            self.players.iter_mut().try_for_each(Player::end_captures)?;
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
            let player = self.random.index(self.players.len());
            self.players[player].act()?;
        }
        Ok(())
    }

    fn in_threads(&mut self) -> Outcome {
        thread::scope(|scope| {
            let play = |player: &mut Player| {
                player.world.context.cudarc().bind_to_thread()?;
                (0..ROUND / PLAYERS).try_for_each(|_| player.act())?;
                // A capture is ended by the thread that began it.
                player.end_captures()
            };
            let threads = self.players.iter_mut();
            let threads: Vec<_> = threads
                .map(|player| scope.spawn(move || play(player)))
                .collect();
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            ended
                .into_iter()
                .try_for_each(|ended| ended.unwrap_or_else(|_| Err("a panic".into())))
        })
    }

    fn end(self) -> Outcome {
        self.players.into_iter().try_for_each(Player::end)
    }
}

fn run(control: &'static StandIn, kind: Kind, seed: u64, operations: u64) -> Outcome {
    let mut run = Run::new(control, kind, seed)?;
    if kind.deferred {
        control.schedule_deferred(seed);
    }
    run.play(operations)?;
    run.end()
}

#[test]
fn a_long_run_loses_nothing_and_nothing_grows() {
    let Some((control, _turn)) = alone() else {
        return;
    };
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
