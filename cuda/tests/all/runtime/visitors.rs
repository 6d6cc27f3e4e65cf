//! Visitors: when and in which order they are called, and until when they can be registered.

use larder_core::{Addr, BlockAllocator, Request};
use larder_cuda::runtime::{Node, RegionVisit, Visited, VisitorLate};

use crate::common::MIB;
use crate::runtime::rig::{
    Diary, cpu, end, gpu, host_kind, host_kinds, numa, on_gpus, pinned, runtime, stream_of, take,
    with,
};

#[test]
fn ps_4_visitors_run_in_order_and_in_reverse() {
    for cpu_bfc in [true, false] {
        let runtime = runtime(host_kind(cpu_bfc, false));
        let diary = Diary::default();
        for name in ["alloc A", "alloc B"] {
            let added = runtime.add_alloc_visitor(Visited::Cpu, diary.visitor(name));
            added.unwrap();
        }
        for name in ["free A", "free B"] {
            let added = runtime.add_free_visitor(Visited::Cpu, diary.visitor(name));
            added.unwrap();
        }
        let memory = runtime.cpu_allocator(None).unwrap();
        let block = take(&memory, 10_000);
        assert_eq!(diary.names(), ["alloc A", "alloc B"]);
        assert!(diary.visits()[0].1.range.contains(block.range()));
        memory.free(block).unwrap();
        memory.trim();
        assert_eq!(diary.names(), ["alloc A", "alloc B", "free B", "free A"]);
        let visits = diary.visits();
        assert!(visits.iter().all(|(_, visit)| *visit == visits[0].1));
        assert_eq!(visits[0].1.index, 0);
    }
}

#[test]
fn ps_4_a_visitor_that_comes_late_is_refused_and_called_for_nothing() {
    let runtime = runtime(numa());
    let diary = Diary::of(&runtime, Visited::Cpu);
    let memory = cpu(&runtime, 1);
    let late = VisitorLate { memory: "CPU" };
    let added = [
        runtime.add_alloc_visitor(Visited::Cpu, diary.visitor("late")),
        runtime.add_free_visitor(Visited::Cpu, diary.visitor("late")),
    ];
    assert_eq!(added, [Err(late); 2]);
    assert!(late.to_string().contains("before"));
    // A late visitor is not called for allocators that are made afterwards either.
    let other = cpu(&runtime, 3);
    let blocks = [take(&memory, 1000), take(&other, 1000)];
    let nodes = diary.visits();
    let nodes = nodes.iter().map(|(name, visit)| (*name, visit.index));
    let nodes: Vec<_> = nodes.collect();
    assert_eq!(nodes, [("alloc", 1), ("alloc", 3)], "the node is told");
    let [one, two] = blocks;
    memory.free(one).unwrap();
    other.free(two).unwrap();
    // Other kinds of memory have their own lists, so their visitors are not late.
    Diary::of(&runtime, Visited::Pinned(Node::ZERO));
    Diary::of(&runtime, Visited::Gpu(Node::ZERO));
}

#[test]
fn ps_4_a_request_that_failed_makes_nobody_late() {
    let runtime = runtime(numa());
    assert!(runtime.cpu_allocator(Some(Node::new(77))).is_err());
    Diary::of(&runtime, Visited::Cpu);
    assert!(runtime.cpu_allocator(None).is_ok());
}

#[test]
fn a_refused_region_is_reported_to_nobody() {
    let runtime = runtime(host_kind(true, false));
    let diary = Diary::of(&runtime, Visited::Cpu);
    let memory = runtime.cpu_allocator(None).unwrap();
    assert!(memory.alloc(&Request::new(1 << 60)).is_err());
    assert_eq!(diary.visits(), []);
}

#[test]
fn regions_that_go_with_their_allocator_are_reported_too() {
    // The third kind, the global allocator, has no regions.
    for config in &host_kinds()[..2] {
        let runtime = runtime(config.clone());
        let diary = Diary::of(&runtime, Visited::Cpu);
        let memory = runtime.cpu_allocator(None).unwrap();
        let block = take(&memory, 1000);
        memory.free(block).unwrap();
        assert_eq!(diary.names(), ["alloc"], "it is kept");
        drop(memory);
        end(runtime);
        assert_eq!(diary.names(), ["alloc", "free"]);
    }
}

/// Returns the regions that were allocated and not freed, and checks that no two overlap.
fn held(diary: &Diary) -> Vec<RegionVisit> {
    let mut held: Vec<RegionVisit> = Vec::new();
    for (name, visit) in diary.visits() {
        let known = held.iter().position(|known| *known == visit);
        match (name, known) {
            ("alloc", None) => {
                assert!(held.iter().all(|known| !known.range.overlaps(visit.range)));
                held.push(visit);
            }
            ("free", Some(place)) => {
                held.swap_remove(place);
            }
            other => panic!("{other:?} {visit:?}"),
        }
    }
    held
}

fn is_held(diary: &Diary, at: Addr) -> bool {
    let holds = |visit: &RegionVisit| visit.range.start() <= at && at < visit.range.end();
    held(diary).iter().any(holds)
}

#[test]
fn visitors_of_a_node_are_called_for_its_gpus_alone_and_of_each_region_once() {
    let mut diaries = None;
    on_gpus(with(|_| ()), |runtime| {
        let [zero, two] = [0, 2].map(|node| Diary::of(runtime, Visited::Gpu(Node::new(node))));
        let of_pinned = Diary::of(runtime, Visited::Pinned(Node::new(1)));
        // The second device is on node 2.
        let memory = gpu(runtime, 1, 64);
        let late = runtime.add_alloc_visitor(Visited::Gpu(Node::new(3)), zero.visitor("alloc"));
        assert_eq!(late, Err(VisitorLate { memory: "GPU" }));
        let stream = stream_of(&memory);
        for round in 1..6 {
            let blocks = [1, 2, 3, 4].map(|mib| memory.alloc(&stream, mib * round * MIB).unwrap());
            let regions = held(&two);
            assert!(regions.iter().all(|visit| visit.index == 1));
            let sum: u64 = regions.iter().map(|visit| visit.range.bytes()).sum();
            let live = memory.stats().live_bytes;
            assert!(sum >= live, "all that is in use is known: {sum} of {live}");
            for block in blocks {
                assert!(is_held(&two, block.addr()), "{block:?}");
                memory.free(&stream, block).unwrap();
            }
            stream.synchronize().unwrap();
            memory.device_allocator().unwrap().release(u64::MAX);
        }
        assert_eq!(zero.visits(), []);

        let [host, other] = [1, 3].map(|node| pinned(runtime, node));
        let (one, unseen) = (take(&host, 1000), take(&other, 1000));
        let regions = held(&of_pinned);
        assert_eq!((regions.len(), regions[0].index), (1, 1));
        host.free(one).unwrap();
        other.free(unseen).unwrap();
        diaries = Some([two, of_pinned]);
    });
    for diary in diaries.into_iter().flatten() {
        assert!(!diary.names().is_empty());
        assert_eq!(held(&diary), [], "all went with the allocator");
    }
}

#[test]
fn visitors_hear_that_memory_sleeps_and_wakes() {
    let mut kept = None;
    on_gpus(with(|_| ()), |runtime| {
        let diary = Diary::of(runtime, Visited::Gpu(Node::ZERO));
        let memory = gpu(runtime, 0, 64);
        let stream = stream_of(&memory);
        let device = memory.device_allocator().unwrap();
        for round in 1..6 {
            let block = memory.alloc(&stream, round * MIB).unwrap();
            device.sleep().unwrap();
            assert_eq!(held(&diary), [], "asleep nothing is held");
            device.wake().unwrap();
            assert!(is_held(&diary, block.addr()), "what woke is known again");
            memory.free(&stream, block).unwrap();
            // The region of a block that is freed during the sleep is not reported again.
            let block = memory.alloc(&stream, 7 * MIB).unwrap();
            device.sleep().unwrap();
            memory.free(&stream, block).unwrap();
            device.wake().unwrap();
            device.release(u64::MAX);
        }
        kept = Some(diary);
    });
    assert!(kept.is_none_or(|diary| held(&diary).is_empty()));
}
