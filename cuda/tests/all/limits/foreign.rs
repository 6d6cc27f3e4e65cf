//! Memory that a program takes directly from the driver shares budgets with allocators.

use std::sync::{Arc, Mutex};

use larder_core::limits::{LimitAnswer, LimitEventKind};
use larder_cuda::{Context, DeviceAllocator, ForeignMemory, Limits};

use super::common::{MIB, alone_and_clean};
use super::{plain, stream};

#[test]
fn foreign_memory_and_an_allocator_share_a_budget() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let queue = stream(&context);
        let limits = Limits::new(16 * MIB).unwrap();
        let foreign = ForeignMemory::in_budget(u64::MAX, limits.process()).unwrap();
        let memory = DeviceAllocator::in_budget(&context, plain(), limits.process()).unwrap();
        let charge = foreign.charge(10 * MIB).unwrap();
        assert!(memory.alloc(&queue, 8 * MIB).is_err());
        let block = memory.alloc(&queue, 6 * MIB).unwrap();
        let refused = foreign.charge(1).unwrap_err();
        assert_eq!(refused.budget.as_str(), "process");
        drop(charge);
        let charge = foreign.charge(10 * MIB).unwrap();
        assert_eq!(charge.bytes(), 10 * MIB);
        // The excess counts the bytes of both.
        let answer = limits.process().set(8 * MIB);
        assert_eq!(answer, LimitAnswer::Deferred { bytes: 8 * MIB });
        drop(charge);
        assert!(foreign.charge(3 * MIB).is_err());
        memory.free(&queue, block).unwrap();
        memory.release(u64::MAX);
        drop(foreign.charge(8 * MIB).unwrap());
    });
}

#[test]
fn what_is_held_is_said_beyond_the_limit_and_watched() {
    let foreign = ForeignMemory::new(10).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let _watch = foreign.watch_limit(move |event| notes.lock().unwrap().push(event.kind));
    let (mut first, second) = (foreign.charge(4).unwrap(), foreign.charge(6).unwrap());
    assert!(foreign.charge(1).is_err());
    first.join(second);
    assert_eq!((first.bytes(), foreign.usage().used_bytes), (10, 10));
    first.set_bytes(15);
    assert_eq!(foreign.usage().excess_bytes, 5);
    assert!(foreign.charge(0).is_err(), "nothing while it is above");
    first.set_bytes(11);
    assert_eq!(*seen.lock().unwrap(), []);
    first.set_bytes(9);
    assert_eq!(*seen.lock().unwrap(), [LimitEventKind::ShrinkDone]);
    // A charge of another `ForeignMemory` is dropped, and adds nothing.
    let other = ForeignMemory::new(10).unwrap();
    first.join(other.charge(3).unwrap());
    assert_eq!((first.bytes(), other.usage().used_bytes), (9, 0));
    assert_eq!(foreign.set_limit(5), LimitAnswer::Deferred { bytes: 4 });
    drop(first);
    assert_eq!(seen.lock().unwrap().len(), 2);
    assert_eq!(foreign.usage().used_bytes, 0);
}
