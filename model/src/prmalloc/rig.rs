//! A test rig for pools, be they ours, upstream's or a device's: steps written as text, the blocks in use, and
//! upstream's own cases.

use std::collections::{BTreeMap, HashMap};

use larder_core::prmalloc::{PlanError, PoolCounts, TensorPool};
use larder_core::{Addr, Align, AllocError, FreeError, SubAllocator};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A pool over some backend.
pub trait AnyPool {
    /// Allocates a block.
    ///
    /// # Errors
    /// The error of the pool.
    fn alloc(&self, bytes: u64, align: Align) -> Result<Addr, AllocError>;
    /// Frees the block at an address.
    ///
    /// # Errors
    /// The error of the pool.
    fn free(&self, addr: Addr) -> Result<(), FreeError>;
    /// Runs `run` in a step, and the rounds that are due before and after it.
    ///
    /// # Errors
    /// The error of a round.
    fn in_step(&self, run: &mut dyn FnMut()) -> Result<(), PlanError>;
    /// Returns the counts of served requests and held memory.
    fn counts(&self) -> PoolCounts;
    /// Returns whether the pool serves from a plan.
    fn is_planned(&self) -> bool;
    /// Returns the bytes that the cheapest plan needs.
    fn planned_bytes(&self) -> u64;
    /// Resets the planner.
    fn reset(&self);
    /// Returns the numbers of ranges that the backend has granted and released so far.
    fn backend_calls(&self) -> (u64, u64);
    /// Returns the bytes held from the backend.
    fn backend_bytes(&self) -> u64;
    /// Fills a block with a value, if there is memory behind the addresses.
    fn fill(&self, _: Addr, _: u64, _: u8) {}
    /// Checks, now or later, that a block still has the value with which it was filled.
    fn look(&self, _: Addr, _: u64, _: u8) {}
}

/// A backend that counts its calls.
pub trait CountedBackend: SubAllocator {
    /// Returns the numbers of ranges granted and released so far.
    fn calls(&self) -> (u64, u64);
    /// Returns the bytes that are granted now.
    fn out_bytes(&self) -> u64;
}

impl<S: CountedBackend> AnyPool for TensorPool<S> {
    fn alloc(&self, bytes: u64, align: Align) -> Result<Addr, AllocError> {
        Self::alloc(self, bytes, align)
    }

    fn free(&self, addr: Addr) -> Result<(), FreeError> {
        Self::free(self, addr)
    }

    fn in_step(&self, run: &mut dyn FnMut()) -> Result<(), PlanError> {
        let step = self.start();
        run();
        self.end_step(step)
    }

    fn counts(&self) -> PoolCounts {
        Self::counts(self)
    }

    fn is_planned(&self) -> bool {
        self.serving().is_some()
    }

    fn planned_bytes(&self) -> u64 {
        self.planner().best().map_or(0, |best| best.bytes)
    }

    fn reset(&self) {
        self.planner().reset();
    }

    fn backend_calls(&self) -> (u64, u64) {
        self.backend().calls()
    }

    fn backend_bytes(&self) -> u64 {
        self.backend().out_bytes()
    }
}

/// A block in use: its place, and the value with which it was filled, if any.
struct Used {
    addr: Addr,
    bytes: u64,
    value: Option<u8>,
}

/// The blocks in use, by name. Checks that they are aligned, do not overlap, and keep their contents.
#[derive(Default)]
pub struct InUse {
    by_name: HashMap<u32, Used>,
    ranges: BTreeMap<u64, u64>,
    filled: u8,
    is_bare: bool,
}

impl InUse {
    /// Creates a set that fills no blocks, for many steps.
    pub fn bare() -> Self {
        Self {
            is_bare: true,
            ..Self::default()
        }
    }

    /// Allocates a block.
    ///
    /// # Panics
    /// If the pool refuses, or if the block is misaligned or overlaps another.
    #[track_caller]
    pub fn alloc(
        &mut self,
        pool: &(impl AnyPool + ?Sized),
        name: u32,
        bytes: u64,
        align: u64,
    ) -> Addr {
        let align = Align::new(align).expect("a power of two");
        let addr = pool.alloc(bytes, align).expect("a block");
        assert!(addr.is_aligned(align), "{addr} for {align:?}");
        let before = self.ranges.range(..addr.get() + bytes).next_back();
        let is_apart = before.is_none_or(|(start, size)| start + size <= addr.get());
        assert!(is_apart, "{addr} overlaps another");
        self.ranges.insert(addr.get(), bytes);
        let value = (!self.is_bare).then(|| {
            self.filled = self.filled.wrapping_add(1);
            pool.fill(addr, bytes, self.filled);
            self.filled
        });
        let used = Used { addr, bytes, value };
        let former = self.by_name.insert(name, used);
        assert!(former.is_none(), "{name} is in use");
        addr
    }

    /// Checks the contents of a block and frees it.
    ///
    /// # Panics
    /// If the pool refuses the free.
    #[track_caller]
    pub fn free(&mut self, pool: &(impl AnyPool + ?Sized), name: u32) {
        let Used { addr, bytes, value } = self.by_name.remove(&name).expect("a block in use");
        self.ranges.remove(&addr.get());
        if let Some(value) = value {
            pool.look(addr, bytes, value);
        }
        pool.free(addr).expect("a block of the pool");
    }

    /// Frees all blocks.
    #[track_caller]
    pub fn free_all(&mut self, pool: &(impl AnyPool + ?Sized)) {
        let names: Vec<u32> = self.by_name.keys().copied().collect();
        names.into_iter().for_each(|name| self.free(pool, name));
    }

    /// Runs operations. `3=200000@256` allocates block 3, of 200000 bytes, at a multiple of 256; without `@`, at a
    /// multiple of 64. `-3` frees it.
    ///
    /// # Panics
    /// If a block is refused.
    #[track_caller]
    pub fn run(&mut self, pool: &(impl AnyPool + ?Sized), ops: &str) {
        let number = |text: &str| text.parse::<u64>().expect("a number");
        for op in ops.split_whitespace() {
            if let Some(name) = op.strip_prefix('-') {
                self.free(pool, number(name) as u32);
                continue;
            }
            let (name, size) = op.split_once('=').expect("a name and a size");
            let (bytes, align) = size.split_once('@').unwrap_or((size, "64"));
            self.alloc(pool, number(name) as u32, number(bytes), number(align));
        }
    }

    /// Runs a step with these operations, and the rounds that are due before and after it.
    ///
    /// # Errors
    /// The error of a round.
    #[track_caller]
    pub fn step(&mut self, pool: &(impl AnyPool + ?Sized), ops: &str) -> Result<(), PlanError> {
        pool.in_step(&mut || self.run(pool, ops))
    }
}

/// Runs steps with these operations until the pool serves from a plan.
///
/// # Panics
/// If there is no plan after 300 steps.
#[track_caller]
pub fn until_planned(pool: &(impl AnyPool + ?Sized), ops: &str) {
    let mut in_use = InUse::default();
    for _ in 0..300 {
        in_use.step(pool, ops).expect("a round");
        if pool.is_planned() {
            return;
        }
    }
    panic!("no plan after 300 steps");
}

/// Runs empty steps, so that nothing waits for the next step.
fn settle(pool: &(impl AnyPool + ?Sized)) {
    for _ in 0..2 {
        pool.in_step(&mut || ()).expect("no round is due");
    }
}

/// Upstream's own cases, with their numbers. Upstream only asserts that no block is null. Here, a case panics if a
/// block is misaligned, two blocks overlap, or memory is not released.
pub mod cases {
    use super::{AnyPool, InUse, KIB, MIB, settle};

    /// Allocates and frees single blocks, one after the other.
    pub fn single_blocks(pool: &(impl AnyPool + ?Sized)) {
        for (align, bytes) in [
            (32, 100),
            (8, 100),
            (16, 100),
            (16, 128),
            (64, 100),
            (64, 100_000),
            (64, MIB),
            (64, 128 * KIB),
            (16, 1_000_000),
        ] {
            let mut in_use = InUse::default();
            in_use.alloc(pool, 0, bytes, align);
            in_use.free_all(pool);
        }
        settle(pool);
        assert_eq!(pool.backend_bytes(), 0);
    }

    /// Allocates five sizes at five alignments, 100 times each, and frees them all.
    pub fn loop_of_sizes(pool: &(impl AnyPool + ?Sized)) {
        let mut in_use = InUse::default();
        let mut name = 0;
        for _ in 0..100 {
            for align in [8, 16, 32, 64, 128] {
                for bytes in [100, 512, 2048, 128 * KIB, 100 * KIB] {
                    in_use.alloc(pool, name, bytes, align);
                    name += 1;
                }
            }
        }
        in_use.free_all(pool);
    }

    /// Runs the loop of sizes on one thread, then on three at once.
    pub fn loops_on_threads(pool: &(impl AnyPool + Sync + ?Sized)) {
        loop_of_sizes(pool);
        settle(pool);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| loop_of_sizes(pool));
            }
        });
        settle(pool);
        assert_eq!(pool.backend_bytes(), 0);
    }

    /// Returns a step that allocates each size at each alignment, twice, and frees everything at its end.
    fn step_of(sizes: &[u64], aligns: &[u64]) -> String {
        let each = || {
            let of = |align| sizes.iter().map(move |size| format!("{size}@{align}"));
            aligns.iter().flat_map(of)
        };
        let (mut ops, mut count) = (String::new(), 0);
        for block in each().chain(each()) {
            ops += &format!("{count}={block} ");
            count += 1;
        }
        (0..count).for_each(|name| ops += &format!("-{name} "));
        ops
    }

    fn steps(pool: &(impl AnyPool + ?Sized), mut in_use: InUse, count: u32, ops: &str) {
        for _ in 0..count {
            in_use.step(pool, ops).expect("memory for the plan");
        }
    }

    /// Runs 2000 steps of some sizes, then other sizes; resets the pool and repeats both. Contents are checked only in
    /// the first 120 steps. With `plans_small`, sizes up to 32 KiB are planned too.
    pub fn many_steps_then_other_sizes_then_again(
        pool: &(impl AnyPool + ?Sized),
        plans_small: bool,
    ) {
        let ops = step_of(&[100, 128, 1024, 128 * KIB], &[8, 16, 64, 128]);
        for _ in 0..2 {
            steps(pool, InUse::default(), 120, &ops);
            assert!(pool.is_planned());
            let planned = pool.counts().slab_bytes;
            assert!(planned >= 8 * 128 * KIB, "{planned}");
            settle(pool);
            let calls = pool.backend_calls();
            steps(pool, InUse::bare(), 1880, &ops);
            if plans_small {
                assert_eq!(pool.backend_calls(), calls, "all from the plan");
            }
            let calls = pool.backend_calls();
            let large = step_of(&[128 * KIB], &[8, 16, 64, 128]);
            steps(pool, InUse::default(), 1, &large);
            assert_eq!(pool.backend_calls(), calls, "planned for");
            loop_of_sizes(pool);
            settle(pool);
            assert_eq!(pool.backend_bytes(), planned);
            let counts = pool.counts();
            assert_eq!((counts.slab_bytes, counts.direct_bytes), (planned, 0));
            pool.reset();
        }
    }

    /// Runs `count` steps, each with two blocks of each of two sizes.
    pub fn two_sizes_twice(pool: &(impl AnyPool + ?Sized), count: u32) {
        let ops = step_of(&[128 * KIB, 64 * KIB], &[64]);
        steps(pool, InUse::default(), count, &ops);
        assert!(pool.is_planned());
    }

    /// Runs `count` steps, each with two blocks of each of two huge sizes.
    pub fn huge_blocks_twice(pool: &(impl AnyPool + ?Sized), count: u32, sizes: [u64; 2]) {
        let ops = step_of(&sizes, &[64]);
        steps(pool, InUse::default(), count, &ops);
        assert!(pool.is_planned());
        // The plan has at least two blocks of each size.
        let planned = pool.planned_bytes();
        assert!(planned >= 2 * (sizes[0] + sizes[1]), "{planned}");
        let (calls, hits) = (pool.backend_calls(), pool.counts().hits);
        steps(pool, InUse::default(), 1, &ops);
        let now = (pool.backend_calls(), pool.counts().hits);
        assert_eq!(now, (calls, hits + 4));
    }
}
