//! What recalls of lent memory must not do: starve a request, ask for too much, too little, or from the wrong buffer.

use std::sync::{Arc, Mutex};

use cudarc::driver::DevicePtrMut;
use larder_core::AllocError;
use larder_core::limits::LimitAnswer;
use larder_cuda::{
    BlockPool, DeviceAllocError, DeviceAllocator, DeviceConfig, Limits, ReservedBuffer,
};

use crate::common::setup::Setup;
use crate::common::{MIB, alone_and_clean, fill, under_all_schedules};
use crate::loans::{budget, commit, lent, lent_of};

const MEBIBYTE: usize = MIB as usize;

/// Commits that are refused for one request before the memory is lent again.
const PASSED_OVER: usize = 1024;

/// Two allocators in one budget.
fn pair(setup: &Setup, mebibytes: u64) -> (Limits, [DeviceAllocator; 2]) {
    let limits = Limits::new(mebibytes * MIB).unwrap();
    let make = |_| {
        let config = DeviceConfig::new();
        DeviceAllocator::in_budget(&setup.context, config, limits.process()).unwrap()
    };
    let pair = [0, 1].map(make);
    (limits, pair)
}

/// Leaves idle memory in an allocator.
fn leave_idle(setup: &Setup, memory: &DeviceAllocator, mebibytes: u64) {
    let stream = &setup.streams[0];
    let block = memory.alloc(stream, mebibytes * MIB).unwrap();
    memory.free(stream, block).unwrap();
    stream.synchronize().unwrap();
}

/// A pool that takes all memory, and a step of its owner, who does what is asked and then takes what there is.
struct Greedy {
    pool: BlockPool,
    blocks: Vec<usize>,
}

impl Greedy {
    fn new(setup: &Setup) -> Self {
        let pool = setup.memory.block_pool(&setup.streams[0], 2 * MEBIBYTE, 64);
        let pool = pool.unwrap();
        pool.loan().set_guaranteed_bytes(0);
        Self {
            pool,
            blocks: Vec::new(),
        }
    }

    fn step(&mut self, setup: &Setup) {
        let stream = &setup.streams[0];
        while self.pool.loan().recalled_bytes() > 0 {
            let block = self.blocks.pop().unwrap();
            self.pool.free(stream, block).unwrap();
        }
        while let Ok(block) = self.pool.alloc(stream) {
            self.blocks.push(block);
        }
    }
}

#[test]
fn a_lender_that_takes_what_it_can_at_each_step_starves_nobody() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let stream = &setup.streams[0];
        let mut greedy = Greedy::new(&setup);
        let mut other = setup.memory.reserve::<u8>(stream, 1 << 30).unwrap();
        other.loan().set_guaranteed_bytes(16 * MIB);
        greedy.step(&setup);
        assert_eq!(greedy.blocks.len(), 16);
        assert!(commit(&setup, &mut other, 0, 16).is_err());
        greedy.step(&setup);
        commit(&setup, &mut other, 0, 16).unwrap();
        other.decommit(stream, 0..16 * MEBIBYTE).unwrap();
        greedy.step(&setup);
        assert_eq!(
            greedy.blocks.len(),
            16,
            "what is not needed any more is lent again"
        );
        assert!(setup.memory.alloc(stream, 2 * MIB).is_err());
        greedy.step(&setup);
        let block = setup.memory.alloc(stream, 2 * MIB).unwrap();
        setup.free(0, block);
    });
}

#[test]
fn memory_does_not_wait_for_ever_for_a_request_that_is_not_made_again() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let stream = &setup.streams[0];
        let mut greedy = Greedy::new(&setup);
        greedy.step(&setup);
        assert!(setup.memory.alloc(stream, 4 * MIB).is_err());
        for _ in 0..2 {
            let block = greedy.blocks.pop().unwrap();
            greedy.pool.free(stream, block).unwrap();
        }
        let refused = (0..2 * PASSED_OVER).take_while(|_| greedy.pool.alloc(stream).is_err());
        assert_eq!(refused.count(), PASSED_OVER);
        // A buffer that is dropped, or has all that it needs, claims nothing.
        for drops in [false, true] {
            let mut other = setup.memory.block_pool(stream, MEBIBYTE, 8).unwrap();
            other.loan().set_guaranteed_bytes(8 * MIB);
            greedy.step(&setup);
            assert!(other.alloc(stream).is_err());
            let block = greedy.blocks.pop().unwrap();
            greedy.pool.free(stream, block).unwrap();
            assert!(greedy.pool.alloc(stream).is_err());
            if drops {
                drop(other);
            } else {
                other.alloc(stream).unwrap();
                other.clear(stream).unwrap();
            }
            greedy
                .pool
                .alloc(stream)
                .map(|block| greedy.blocks.push(block))
                .unwrap();
        }
    });
}

#[test]
fn memory_waits_for_a_request_in_its_own_budget_alone() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let limits = Limits::new(64 * MIB).unwrap();
        let tenants = ["one", "two"].map(|name| limits.process().tenant(name, 32 * MIB).unwrap());
        let [one, two] = tenants.each_ref().map(|tenant| {
            DeviceAllocator::in_budget(&setup.context, DeviceConfig::new(), tenant).unwrap()
        });
        let mut caches = [lent_of(&setup, &one, 0, 32), lent_of(&setup, &two, 0, 30)];
        assert!(one.alloc(&setup.streams[0], 4 * MIB).is_err());
        caches[0]
            .decommit(&setup.streams[0], 28 * MEBIBYTE..32 * MEBIBYTE)
            .unwrap();
        assert!(commit(&setup, &mut caches[0], 28, 30).is_err());
        commit(&setup, &mut caches[1], 30, 32).unwrap();
        let block = one.alloc(&setup.streams[0], 4 * MIB).unwrap();
        one.free(&setup.streams[0], block).unwrap();
        commit(&setup, &mut caches[0], 28, 32).unwrap();
    });
}

#[test]
fn as_much_as_is_missing_is_recalled_once() {
    alone_and_clean(|_| {
        let setup = budget(64);
        let (mut one, two) = (lent(&setup, 0, 34), lent(&setup, 0, 30));
        let recalled = |one: &ReservedBuffer<u8>| {
            (
                one.loan().recalled_bytes() / MIB,
                two.loan().recalled_bytes() / MIB,
            )
        };
        // All units of a commit within a guarantee.
        let mut other = setup
            .memory
            .reserve::<u8>(&setup.streams[0], 1 << 30)
            .unwrap();
        assert!(commit(&setup, &mut other, 0, 12).is_err());
        assert_eq!(recalled(&one), (12, 0));
        // A part of it has come back, and the rest is still under way.
        one.decommit(&setup.streams[0], 28 * MEBIBYTE..34 * MEBIBYTE)
            .unwrap();
        assert!(commit(&setup, &mut other, 0, 12).is_err());
        assert_eq!(recalled(&one), (6, 0));
        let (_limits, [idle, memory]) = pair(&setup, 64);
        leave_idle(&setup, &idle, 40);
        assert!(memory.alloc(&setup.streams[0], 200 * MIB).is_err());
        assert_eq!(
            idle.pool_stats().pool_bytes,
            40 * MIB,
            "for a request that cannot be served"
        );
        // More than the budget, or than all of them have.
        assert!(setup.memory.alloc(&setup.streams[0], 200 * MIB).is_err());
        assert_eq!(recalled(&one), (6, 0));
    });
}

#[test]
fn a_guarantee_is_whole_units() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let (first, mut second) = (lent(&setup, 9, 30), lent(&setup, 3, 2));
        assert_eq!(
            (first.loan().guaranteed_bytes(), first.loan().lent_bytes()),
            (10 * MIB, 20 * MIB)
        );
        assert!(commit(&setup, &mut second, 2, 3).is_err());
        assert_eq!(first.loan().recalled_bytes(), 2 * MIB);
        first.loan().set_guaranteed_bytes(u64::MAX);
        assert_eq!(first.loan().guaranteed_bytes(), u64::MAX);
    });
}

#[test]
fn memory_that_work_still_uses_is_waited_for_and_not_recalled_again() {
    alone_and_clean(|control| {
        under_all_schedules(control, 6, || {
            let setup = budget(32);
            let (_limits, [caches, blocks]) = pair(&setup, 64);
            let owner = setup.streams[0].clone();
            let pool = caches.block_pool(&owner, 2 * MEBIBYTE, 64).unwrap();
            pool.loan().set_guaranteed_bytes(0);
            let pool = Arc::new(Mutex::new((pool, Vec::new())));
            for value in 0..32 {
                let (pool, blocks) = &mut *pool.lock().unwrap();
                let block = pool.alloc(&owner).unwrap();
                let mut view = pool.get_mut(block).unwrap();
                let (address, _used) = view.device_ptr_mut(&owner);
                (0..8).for_each(|more| fill(&owner, address, 2 * MIB, value + more));
                blocks.push(block);
            }
            let (weak, stream) = (Arc::downgrade(&pool), owner.clone());
            pool.lock().unwrap().0.loan().on_recall(move |_| {
                let Some(pool) = weak.upgrade() else { return };
                let (pool, blocks) = &mut *pool.lock().unwrap();
                while pool.loan().recalled_bytes() > 0 {
                    pool.free(&stream, blocks.pop().unwrap()).unwrap();
                }
            });
            let block = blocks.alloc(&setup.streams[1], 4 * MIB).unwrap();
            assert_eq!(pool.lock().unwrap().0.committed_bytes(), 60 * MIB);
            blocks.free(&setup.streams[1], block).unwrap();
            // A limit that is set again.
            let base = {
                let (pool, blocks) = &mut *pool.lock().unwrap();
                let mut view = pool.get_mut(blocks[0]).unwrap();
                view.device_ptr_mut(&owner).0
            };
            (0..200).for_each(|value| fill(&owner, base, 2 * MIB, value));
            let _ = caches.set_limit(48 * MIB);
            assert_eq!(pool.lock().unwrap().0.committed_bytes(), 48 * MIB);
            let _ = caches.set_limit(48 * MIB);
            assert_eq!(pool.lock().unwrap().0.committed_bytes(), 48 * MIB);
        });
    });
}

#[test]
fn windows_fixed_blocks_and_lent_commits_use_idle_memory_of_the_budget() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let (_limits, [idle, memory]) = pair(&setup, 64);
        leave_idle(&setup, &idle, 40);
        drop(memory.prime(&setup.streams[1], 32 * MIB).unwrap());
        memory.release(u64::MAX);
        leave_idle(&setup, &idle, 40);
        memory.alloc_fixed(32 * MIB).unwrap().free().unwrap();
        leave_idle(&setup, &idle, 40);
        drop(lent_of(&setup, &memory, 8, 32));
        // And recall what is lent.
        let cache = lent(&setup, 0, 32);
        assert!(setup.memory.prime(&setup.streams[1], 8 * MIB).is_err());
        assert_eq!(cache.loan().recalled_bytes(), 8 * MIB);
        assert!(setup.memory.alloc_fixed(10 * MIB).is_err());
        assert_eq!(cache.loan().recalled_bytes(), 10 * MIB);
    });
}

#[test]
fn a_sleeping_cache_lends_nothing() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let (_limits, [one, two]) = pair(&setup, 40);
        let asleep = lent_of(&setup, &one, 0, 32);
        one.sleep().unwrap();
        let awake = lent_of(&setup, &two, 0, 24);
        assert!(two.alloc(&setup.streams[0], 20 * MIB).is_err());
        assert_eq!(
            (
                asleep.loan().recalled_bytes(),
                awake.loan().recalled_bytes()
            ),
            (0, 4 * MIB)
        );
    });
}

#[test]
fn a_callback_that_panics_leaves_nothing_counted_and_is_called_again() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let (first, mut second) = (lent(&setup, 0, 30), lent(&setup, 8, 2));
        let calls = Arc::new(Mutex::new(0));
        let counted = calls.clone();
        first.loan().on_recall(move |_| {
            *counted
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()) += 1;
            panic!("a callback that panics");
        });
        for _ in 0..2 {
            let ask = std::panic::AssertUnwindSafe(|| commit(&setup, &mut second, 2, 8));
            assert!(std::panic::catch_unwind(ask).is_err());
        }
        second.loan().set_guaranteed_bytes(0);
        assert_eq!(second.loan().lent_bytes(), second.committed_bytes());
        assert_eq!(*calls.lock().unwrap(), 2);
    });
}

#[test]
fn a_raised_limit_ends_the_refusals_once_the_owner_has_answered() {
    alone_and_clean(|_| {
        let setup = budget(64);
        let mut cache = lent(&setup, 0, 32);
        let lowered = setup.memory.set_limit(16 * MIB);
        assert_eq!(lowered, LimitAnswer::Deferred { bytes: 16 * MIB });
        assert_eq!(setup.memory.set_limit(64 * MIB), LimitAnswer::Applied);
        assert!(commit(&setup, &mut cache, 32, 34).is_err());
        cache
            .decommit(&setup.streams[0], 16 * MEBIBYTE..32 * MEBIBYTE)
            .unwrap();
        commit(&setup, &mut cache, 16, 34).unwrap();
    });
}

#[test]
fn pools_of_absurd_sizes_are_refused() {
    alone_and_clean(|_| {
        let setup = budget(32);
        let pool = |bytes, blocks| setup.memory.block_pool(&setup.streams[0], bytes, blocks);
        let reason = |refused| match refused {
            Err(DeviceAllocError::Memory { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        let huge = reason(pool(MEBIBYTE, usize::MAX));
        assert!(matches!(huge, AllocError::TooLarge { .. }));
        assert_eq!(reason(pool(0, usize::MAX)), AllocError::ZeroSize);
    });
}
