//! The limit of the host side in a budget.

use larder_core::limits::{BudgetError, LimitAnswer};
use larder_cuda::{DeviceAllocError, HostSide, Limits, StreamAllocator, VmemAllocator, VmemConfig};

use super::{DEVICE, Setup};
use crate::common::{MIB, alone_and_clean};

#[test]
fn in_a_budget_both_sides_are_charged_and_either_makes_room_for_the_other() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::None, 1);
        let stream = &setup.streams[0];
        let limits = Limits::new(4 * MIB).unwrap();
        let config = VmemConfig::new(HostSide::Pinned(64 * MIB));
        let memory = VmemAllocator::in_budget(&setup.device, config, limits.process()).unwrap();
        let device = memory.alloc(stream, DEVICE).unwrap();
        assert_eq!(
            limits.process().usage().used_bytes,
            0,
            "the device's is its own"
        );
        let host = memory.alloc(stream, 4 * MIB).unwrap();
        assert_eq!(limits.process().usage().used_bytes, 4 * MIB);
        let DeviceAllocError::Both { host: refused, .. } =
            memory.alloc(stream, 2 * MIB).unwrap_err()
        else {
            panic!("both sides are full");
        };
        assert!(matches!(*refused, DeviceAllocError::Budget(_)), "{refused}");
        assert_eq!(
            limits.process().set(0),
            LimitAnswer::Deferred { bytes: 4 * MIB }
        );
        memory.free(stream, host).unwrap();
        assert_eq!(limits.process().usage().used_bytes, 0);
        memory.free(stream, device).unwrap();

        // Without a host side there is nothing to limit.
        let none = LimitAnswer::Refused(BudgetError::Unknown);
        assert_eq!(setup.memory.set_host_limit(0), none);
        assert_eq!(setup.memory.host_limit_bytes(), 0);
        assert_eq!(setup.memory.host_pool_stats().pool_bytes, 0);
        assert!(setup.memory.watch_host_limit(|_| {}).is_none());
    });
}
