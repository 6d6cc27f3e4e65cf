//! Ten thousand random limits, while threads allocate and free on several streams.
//!
//! `LARDER_LIMIT_ROUNDS` multiplies the number of rounds; `LARDER_LIMIT_SEED` is the first seed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_core::Block;
use larder_core::limits::LimitAnswer;
use larder_cuda::driver::StandIn;
use larder_cuda::{ArenaPolicy, Budget, Context, DeviceAllocator, DeviceConfig, Limits};
use larder_model::Random;

use super::common::{MIB, alone, assert_clean, number, ran_in_child, rounds};
use super::{check, fill, plain, size, stream};

/// Number of threads that allocate and free, each with its own pool and stream.
const WORKERS: usize = 3;

const LIMITS: u64 = 1000;

/// Number of rounds with `LARDER_FAULTS=all`, ten thousand limits in all. Each round has its own seed.
const ROUNDS: u64 = 10;

const MAX_BLOCKS: usize = 10;

/// The turn of a worker that is not allocating.
const IDLE: u64 = u64::MAX;

struct Watch<'a> {
    control: &'a StandIn,
    tenant: &'a Budget,
    /// Odd while a limit is being set; grows with each limit.
    turn: AtomicU64,
    limit: AtomicU64,
    /// Maximum of physical memory: the limit plus its excess. While a limit is being set, the larger of the old maximum
    /// and the new limit.
    ceiling: AtomicU64,
    /// Bytes of blocks, from their allocation until just before they are freed.
    live: AtomicU64,
    /// The turn at which each worker's current allocation began, or [`IDLE`].
    begun: [AtomicU64; WORKERS],
    over: AtomicBool,
    granted: AtomicU64,
    judged: AtomicU64,
}

impl Watch<'_> {
    /// Allocates a block. If no limit was set meanwhile and no older allocation was in progress, the live bytes must be
    /// within the limit.
    fn alloc(
        &self,
        at: usize,
        pool: &DeviceAllocator,
        random: &mut Random,
        ours: &Ours,
    ) -> Option<Block> {
        let turn = self.turn.load(Ordering::SeqCst);
        self.begun[at].store(turn, Ordering::SeqCst);
        let fresh = |begun: &AtomicU64| {
            let begun = begun.load(Ordering::SeqCst);
            begun == IDLE || begun >= turn
        };
        let settled = turn.is_multiple_of(2) && self.begun.iter().all(fresh);
        let limit = self.limit.load(Ordering::SeqCst);
        let given = pool.alloc(&ours.queue, size(random)).ok();
        if let Some(block) = &given {
            let live = self.live.fetch_add(block.bytes(), Ordering::SeqCst) + block.bytes();
            self.granted.fetch_add(1, Ordering::Relaxed);
            if settled && self.turn.load(Ordering::SeqCst) == turn {
                self.judged.fetch_add(1, Ordering::Relaxed);
                assert!(live <= limit, "{live} bytes are live, the limit is {limit}");
            }
        }
        self.begun[at].store(IDLE, Ordering::SeqCst);
        self.check_physical();
        given
    }

    fn check_physical(&self) {
        let before = self.turn.load(Ordering::SeqCst);
        let ceiling = self.ceiling.load(Ordering::SeqCst);
        let used = self.control.used(0);
        if self.turn.load(Ordering::SeqCst) == before {
            assert!(used <= ceiling, "{used} bytes exist, {ceiling} may");
        }
    }

    fn free(&self, pool: &DeviceAllocator, ours: &Ours, block: Block, value: u8) {
        check(&ours.queue, &block, value);
        self.live.fetch_sub(block.bytes(), Ordering::SeqCst);
        // The free comes while queued work uses the block.
        fill(&ours.queue, &block, value);
        pool.free(&ours.queue, block).unwrap();
    }

    fn set(&self, limit: u64) {
        let old = self.ceiling.load(Ordering::SeqCst);
        self.turn.fetch_add(1, Ordering::SeqCst);
        self.ceiling.store(old.max(limit), Ordering::SeqCst);
        self.limit.store(limit, Ordering::SeqCst);
        let answer = self.tenant.set(limit);
        let above = match answer {
            LimitAnswer::Applied => 0,
            LimitAnswer::Deferred { bytes } => bytes,
            refused => panic!("{refused:?}"),
        };
        // The excess is what was held at the answer. From now on nothing is created above the limit.
        assert!(limit + above <= old.max(limit), "more is held than before");
        self.ceiling.store(limit + above, Ordering::SeqCst);
        self.turn.fetch_add(1, Ordering::SeqCst);
        self.check_physical();
    }
}

struct Ours {
    queue: std::sync::Arc<cudarc::driver::CudaStream>,
}

fn work(watch: &Watch<'_>, at: usize, pool: &DeviceAllocator, seed: u64, context: &Context) {
    let mut random = Random::new(seed.wrapping_mul(77).wrapping_add(at as u64));
    let ours = Ours {
        queue: stream(context),
    };
    let mut live: VecDeque<(Block, u8)> = VecDeque::new();
    let mut value = at as u8;
    while !watch.over.load(Ordering::SeqCst) {
        if live.len() < MAX_BLOCKS && random.below(2) == 0 {
            if let Some(block) = watch.alloc(at, pool, &mut random, &ours) {
                value = value % 250 + 1;
                fill(&ours.queue, &block, value);
                live.push_back((block, value));
            }
        } else if let Some((block, value)) = live.pop_front() {
            watch.free(pool, &ours, block, value);
        }
        match random.below(60) {
            0 => pool.end_step(),
            1 => {
                // The pool's own limit changes too, which must not let the tenant exceed its limit.
                let _ = pool.set_limit(random.below(40) * MIB);
                let _ = pool.set_limit(u64::MAX);
            }
            _ => {}
        }
    }
    for (block, value) in live {
        watch.free(pool, &ours, block, value);
    }
    ours.queue.synchronize().unwrap();
}

/// Runs a round. Returns the number of blocks allocated, and the number that could be checked against the limit.
fn round(control: &'static StandIn, seed: u64) -> (u64, u64) {
    control.schedule_eagerly();
    let context = Context::new(0).unwrap();
    let limits = Limits::new(u64::MAX).unwrap();
    let tenant = limits.process().tenant("t", 40 * MIB).unwrap();
    let config = DeviceConfig {
        arenas: if seed % 4 == 3 {
            ArenaPolicy::Always
        } else {
            ArenaPolicy::Never
        },
        ..plain()
    };
    let pools = [(); WORKERS]
        .map(|()| DeviceAllocator::in_budget(&context, config.clone(), &tenant).unwrap());
    if seed % 2 == 1 {
        control.schedule_deferred(seed);
    }
    let watch = Watch {
        control,
        tenant: &tenant,
        turn: AtomicU64::new(0),
        limit: AtomicU64::new(40 * MIB),
        ceiling: AtomicU64::new(40 * MIB),
        live: AtomicU64::new(0),
        begun: [const { AtomicU64::new(IDLE) }; WORKERS],
        over: AtomicBool::new(false),
        granted: AtomicU64::new(0),
        judged: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        for (at, pool) in pools.iter().enumerate() {
            let (watch, context) = (&watch, &context);
            scope.spawn(move || work(watch, at, pool, seed, context));
        }
        let mut random = Random::new(!seed);
        for _ in 0..LIMITS {
            watch.set(random.below(40) * MIB + random.below(2) * 4096);
            for _ in 0..random.below(4) {
                std::thread::yield_now();
            }
        }
        watch.over.store(true, Ordering::SeqCst);
    });
    // Everything was freed, so a limit of 0 takes effect at once and the tables are empty.
    for pool in &pools {
        pool.end_step();
    }
    assert_eq!(tenant.set(0), LimitAnswer::Applied);
    assert_eq!((control.used(0), tenant.usage().used_bytes), (0, 0));
    for pool in &pools {
        let snapshot = pool.snapshot();
        assert_eq!((snapshot.pages.handles, snapshot.stats.live_bytes), (0, 0));
        assert_eq!(
            snapshot.pages.active_mappings + snapshot.pages.cached_mappings,
            0
        );
        assert!(snapshot.chunks.len() <= 1, "an unmapped range at most");
    }
    control.schedule_eagerly();
    drop(pools);
    assert_eq!(limits.process().usage().used_bytes, 0);
    (watch.granted.into_inner(), watch.judged.into_inner())
}

#[test]
fn l6_thousands_of_limits_beside_allocations_and_frees_grant_nothing_above() {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    let first = number("LARDER_LIMIT_SEED", 0);
    let (mut granted, mut judged) = (0, 0);
    let seeds = rounds(ROUNDS) * number("LARDER_LIMIT_ROUNDS", 1);
    for seed in first..first + seeds {
        println!("seed {seed}");
        let counts = round(control, seed);
        granted += counts.0;
        judged += counts.1;
        assert_clean(control);
    }
    println!("{granted} blocks, {judged} of them judged");
    assert!(judged > 0, "a check that never looked");
}
