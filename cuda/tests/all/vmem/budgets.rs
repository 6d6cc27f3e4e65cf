//! If a small budget limits the device side, the host serves instead.

use larder_core::Placement;
use larder_core::limits::LimitAnswer;
use larder_cuda::{
    Context, DeviceAllocator, DeviceConfig, HostSide, Limits, Movable, StreamAllocator,
    VmemAllocator, VmemConfig,
};

use crate::common::{MIB, alone_and_clean};

#[test]
fn the_host_serves_what_a_budget_around_the_device_refuses() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let tenant = limits.process().tenant("t", 4 * MIB).unwrap();
        let device = DeviceAllocator::in_budget(&context, DeviceConfig::new(), &tenant).unwrap();
        let config = VmemConfig::new(HostSide::Pinned(16 * MIB));
        let memory = VmemAllocator::new(&device, config).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let mut first = memory.zeros::<u8>(&stream, 4 << 20).unwrap();
        assert_eq!(first.placement(), Placement::Device);
        let mut second = memory.zeros::<u8>(&stream, 2 << 20).unwrap();
        assert_eq!(second.placement(), Placement::Host, "the tenant is full");
        // There is not enough room to move, which is not an error.
        let moved = memory.migrate([&mut first as &mut dyn Movable, &mut second]);
        assert_eq!((moved.left_bytes, moved.refusal), (2 * MIB, None));
        // Above a lowered limit, memory that is held serves no requests either.
        assert_eq!(tenant.set(3 * MIB), LimitAnswer::Deferred { bytes: MIB });
        let third = memory.alloc(&stream, MIB).unwrap();
        assert_eq!(memory.placement(&third), Placement::Host);
        memory.free(&stream, third).unwrap();
        drop(first);
        assert!(
            control.used(0) <= 3 * MIB,
            "the excess went with the buffer"
        );
        let moved = memory.migrate([&mut second as &mut dyn Movable]);
        assert_eq!(moved.moved_bytes, 2 * MIB);
    });
}
