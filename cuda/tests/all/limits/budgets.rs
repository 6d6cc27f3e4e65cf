//! Pools in tenants in a process.

use larder_core::limits::{BudgetConfig, BudgetError, LimitAnswer};
use larder_cuda::{
    Context, DeviceAllocError, DeviceAllocator, DeviceConfig, Limits, PinnedAllocator, PinnedConfig,
};

use super::common::{MIB, alone_and_clean};
use super::{plain, stream};

#[test]
fn a_tenant_that_is_full_refuses_and_says_who_it_is() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let tenant = limits.process().tenant("first", 8 * MIB).unwrap();
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        let other = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        let queue = stream(&context);
        let blocks = [&memory, &other].map(|pool| pool.alloc(&queue, 4 * MIB).unwrap());
        assert_eq!(tenant.usage().used_bytes, 8 * MIB);
        assert_eq!(limits.process().usage().used_bytes, 8 * MIB);
        let error = memory.alloc(&queue, 2 * MIB).unwrap_err();
        let DeviceAllocError::Budget(refused) = error else {
            panic!("{error}");
        };
        assert_eq!(refused.budget.as_str(), "first");
        assert_eq!(
            (refused.limit_bytes, refused.used_bytes),
            (8 * MIB, 8 * MIB)
        );
        assert_eq!(refused.wanted_bytes, 2 * MIB);
        assert!(error.to_string().contains("`first`"), "{error}");
        // The process is full for a tenant that has room.
        assert_eq!(limits.process().set(9 * MIB), LimitAnswer::Applied);
        let second = limits.process().tenant("second", 9 * MIB).unwrap();
        let third = DeviceAllocator::in_budget(&context, plain(), &second).unwrap();
        let error = third.alloc(&queue, 2 * MIB).unwrap_err();
        let DeviceAllocError::Budget(refused) = error else {
            panic!("{error}");
        };
        assert_eq!(refused.budget.as_str(), "process");
        // The same pools' memory counts no more once it is the driver's.
        let [a, b] = blocks;
        memory.free(&queue, a).unwrap();
        other.free(&queue, b).unwrap();
        memory.release(u64::MAX);
        other.release(u64::MAX);
        assert_eq!(tenant.usage().used_bytes, 0);
        let block = third.alloc(&queue, 8 * MIB).unwrap();
        third.free(&queue, block).unwrap();
    });
}

#[test]
fn idle_pages_of_the_pool_go_before_a_budget_refuses() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(u64::MAX).unwrap();
        let tenant = limits.process().tenant("t", 12 * MIB).unwrap();
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        let queue = stream(&context);
        // Idle memory in holes, none of them large enough.
        let blocks: Vec<_> = (0..6)
            .map(|_| memory.alloc(&queue, 2 * MIB).unwrap())
            .collect();
        let mut kept = Vec::new();
        for (at, block) in blocks.into_iter().enumerate() {
            if at % 2 == 0 {
                memory.free(&queue, block).unwrap();
            } else {
                kept.push(block);
            }
        }
        let large = memory.alloc(&queue, 6 * MIB).unwrap();
        assert!(control.used(0) <= 12 * MIB);
        kept.push(large);
        for block in kept {
            memory.free(&queue, block).unwrap();
        }
    });
}

#[test]
fn am_3_no_pool_of_a_lowered_tenant_grants_until_memory_has_gone_back() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let tenant = limits.process().tenant("t", 64 * MIB).unwrap();
        let pools =
            [(); 2].map(|()| DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap());
        let queue = stream(&context);
        let [a1, a2] = [(); 2].map(|()| pools[0].alloc(&queue, 4 * MIB).unwrap());
        let b = pools[1].alloc(&queue, 4 * MIB).unwrap();
        let small = pools[1].alloc(&queue, MIB).unwrap();
        assert_eq!(control.used(0), 14 * MIB);
        let answer = tenant.set(10 * MIB);
        assert_eq!(answer, LimitAnswer::Deferred { bytes: 4 * MIB });
        // The second pool has room in its last page, and must not use it.
        for pool in &pools {
            let error = pool.alloc(&queue, 256 << 10).unwrap_err();
            assert!(matches!(error, DeviceAllocError::Budget(_)), "{error}");
        }
        // One block is freed: the excess goes with it, and both grant again.
        pools[0].free(&queue, a1).unwrap();
        assert_eq!(tenant.usage().excess_bytes, 0);
        assert_eq!(control.used(0), 10 * MIB);
        let more = pools[1].alloc(&queue, 256 << 10).unwrap();
        assert!(
            pools[0].alloc(&queue, 256 << 10).is_err(),
            "the tenant is full"
        );
        // Raised again before anything was freed.
        assert_eq!(
            tenant.set(4 * MIB),
            LimitAnswer::Deferred { bytes: 6 * MIB }
        );
        assert_eq!(tenant.set(64 * MIB), LimitAnswer::Applied);
        let large = pools[0].alloc(&queue, 30 * MIB).unwrap();
        pools[0].free(&queue, large).unwrap();
        pools[0].free(&queue, a2).unwrap();
        for block in [b, small, more] {
            pools[1].free(&queue, block).unwrap();
        }
        assert_eq!(limits.process().set(0), LimitAnswer::Applied);
        assert_eq!(control.used(0), 0);
    });
}

#[test]
fn the_pool_whose_idle_memory_just_suffices_gives_it() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let process = limits.process();
        let pools = [16, 4, 6].map(|mib| {
            let memory = DeviceAllocator::in_budget(&context, plain(), process).unwrap();
            let queue = stream(&context);
            let block = memory.alloc(&queue, mib * MIB).unwrap();
            memory.free(&queue, block).unwrap();
            memory
        });
        let held = || [0, 1, 2].map(|at: usize| pools[at].stats().reserved_bytes / MIB);
        assert_eq!(held(), [16, 4, 6]);
        assert_eq!(process.set(22 * MIB), LimitAnswer::Applied);
        assert_eq!(held(), [16, 0, 6]);
        // None suffices: the one with most, and then as little as may be.
        assert_eq!(process.set(4 * MIB), LimitAnswer::Applied);
        assert_eq!(held()[0], 0);
        assert!(control.used(0) <= 4 * MIB);
    });
}

#[test]
fn pinned_memory_and_device_memory_share_a_tenant() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(u64::MAX).unwrap();
        let tenant = limits.process().tenant("both", 16 * MIB).unwrap();
        let device = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        let config = PinnedConfig::default();
        let host = PinnedAllocator::in_budget(&context, config, u64::MAX, &tenant).unwrap();
        let queue = stream(&context);
        let numbers = host.zeros::<u8>(6 << 20).unwrap();
        let held = tenant.usage().used_bytes;
        assert!(held >= 6 * MIB);
        let block = device.alloc(&queue, 8 * MIB).unwrap();
        let error = host.zeros::<u8>(4 << 20).unwrap_err();
        assert!(matches!(error, DeviceAllocError::Budget(_)), "{error}");
        assert_eq!(tenant.set(8 * MIB), LimitAnswer::Deferred { bytes: held });
        drop(numbers);
        assert_eq!(tenant.usage().used_bytes, 8 * MIB);
        device.free(&queue, block).unwrap();
        assert_eq!(tenant.set(0), LimitAnswer::Applied);
    });
}

#[test]
fn a_budget_goes_with_its_last_pool() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let floor = BudgetConfig {
            floor_bytes: 64 * MIB,
            ..BudgetConfig::new(64 * MIB)
        };
        let tenant = limits
            .process()
            .tenant_with("a tenant with quite a long name", floor);
        let tenant = tenant.unwrap();
        assert_eq!(tenant.name().as_str(), "a tenant with quite a l");
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        drop(tenant);
        let again = limits.process().tenant_with("b", floor);
        assert!(
            matches!(again, Err(BudgetError::BelowFloor { .. })),
            "{again:?}"
        );
        drop(memory);
        assert!(limits.process().tenant_with("b", floor).is_ok());
        assert!(matches!(
            limits.process().set_with_soft(MIB, 2 * MIB),
            LimitAnswer::Refused(_)
        ));
        let config = DeviceConfig {
            limit_bytes: 0,
            ..plain()
        };
        let memory = DeviceAllocator::in_budget(&context, config, limits.process()).unwrap();
        assert!(memory.alloc(&stream(&context), 1).is_err());
    });
}

#[test]
fn two_threads_lower_and_raise_while_others_allocate() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let tenant = limits.process().tenant("t", 64 * MIB).unwrap();
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        std::thread::scope(|scope| {
            for budget in [limits.process(), &tenant] {
                scope.spawn(move || {
                    for round in 0..400 {
                        let _ = budget.set(if round % 2 == 0 { 6 * MIB } else { 40 * MIB });
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let queue = stream(&context);
                    for _ in 0..800 {
                        if let Ok(block) = memory.alloc(&queue, 3 * MIB) {
                            memory.free(&queue, block).unwrap();
                        }
                    }
                });
            }
        });
        // Whoever came last, the pool has what the tree says.
        assert_eq!(limits.process().set(40 * MIB), LimitAnswer::Applied);
        assert_eq!(tenant.set(32 * MIB), LimitAnswer::Applied);
        let queue = stream(&context);
        let block = memory.alloc(&queue, 32 * MIB).unwrap();
        assert!(memory.alloc(&queue, 2 * MIB).is_err());
        memory.free(&queue, block).unwrap();
    });
}
