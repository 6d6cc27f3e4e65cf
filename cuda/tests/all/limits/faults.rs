//! Every driver call of a lowered limit is refused once, and the driver refuses to take memory back.

use larder_core::limits::LimitAnswer;
use larder_cuda::driver::Rule;
use larder_cuda::{Context, DeviceAllocator, Limits};

use super::common::refusal::{SWEEP, Sweep};
use super::common::{MIB, alone_and_clean};
use super::{check, fill, plain, stream};

#[test]
fn every_call_of_a_lowered_limit_is_refused_once() {
    let sweep = Sweep {
        each_code: true,
        ..SWEEP
    };
    sweep.run(3, |refusal| {
        let used = || refusal.control.used(0);
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let tenant = limits.process().tenant("t", 64 * MIB).unwrap();
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        let queues = [stream(&context), stream(&context)];
        let blocks = [4, 2, 6, 2].map(|mib| memory.alloc(&queues[0], mib * MIB).unwrap());
        let [a, b, c, kept] = blocks;
        fill(&queues[0], &kept, 5);
        memory.free(&queues[0], a).unwrap();
        memory.free(&queues[1], b).unwrap();
        memory.free(&queues[0], c).unwrap();
        let before = used();
        let answer = refusal.around(|| tenant.set(2 * MIB));
        // The answer must be exact: the charge is what the driver has given.
        let held = used();
        assert!(held <= before, "{held} of {before}");
        assert_eq!(answer, LimitAnswer::with_excess(held - 2 * MIB));
        assert_eq!(tenant.usage().used_bytes, held);
        assert!(memory.alloc(&queues[0], MIB).is_err());
        check(&queues[0], &kept, 5);
        // Now the rest is released too, the refused frees first.
        context.settle();
        limits.poll();
        assert_eq!((used(), tenant.usage().used_bytes), (2 * MIB, 2 * MIB));
        memory.free(&queues[0], kept).unwrap();
        assert_eq!(tenant.set(0), LimitAnswer::Applied);
    });
}

#[test]
fn what_the_driver_does_not_take_back_stays_charged_until_it_does() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(8 * MIB).unwrap();
        let memory = DeviceAllocator::in_budget(&context, plain(), limits.process()).unwrap();
        let queue = stream(&context);
        let block = memory.alloc(&queue, 4 * MIB).unwrap();
        memory.free(&queue, block).unwrap();
        control
            .fail(Rule::of("cuMemRelease").times(u64::MAX))
            .unwrap();
        drop(memory);
        assert!(context.refused_frees() > 0);
        assert_eq!(control.used(0), 4 * MIB);
        assert_eq!(limits.process().usage().used_bytes, 4 * MIB);
        control.clear_failures();
        // A budget without room retries refused frees before it refuses.
        let memory = DeviceAllocator::in_budget(&context, plain(), limits.process()).unwrap();
        let block = memory.alloc(&queue, 8 * MIB).unwrap();
        assert_eq!((context.refused_frees(), control.used(0)), (0, 8 * MIB));
        assert_eq!(limits.process().usage().used_bytes, 8 * MIB);
        memory.free(&queue, block).unwrap();
    });
}
