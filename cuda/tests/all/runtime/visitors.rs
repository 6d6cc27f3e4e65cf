//! Visitors: when they are called, in which order, and how long they may be registered.

use std::sync::Arc;

use larder_core::{BlockAllocator, Request};
use larder_cuda::runtime::{GpuOptions, Node, RegionVisit, RuntimeConfig, Visited, VisitorLate};
use larder_cuda::{Context, CudaStream};

use crate::common::{MIB, alone_and_clean};
use crate::runtime::rig::{Diary, numa, runtime, take};

#[test]
fn ps_4_visitors_run_in_order_and_in_reverse() {
    for cpu_bfc in [Some(true), Some(false)] {
        let runtime = runtime(RuntimeConfig {
            cpu_bfc,
            ..RuntimeConfig::default()
        });
        let diary = Diary::default();
        runtime
            .add_alloc_visitor(Visited::Cpu, diary.visitor("alloc A"))
            .unwrap();
        runtime
            .add_alloc_visitor(Visited::Cpu, diary.visitor("alloc B"))
            .unwrap();
        runtime
            .add_free_visitor(Visited::Cpu, diary.visitor("free A"))
            .unwrap();
        runtime
            .add_free_visitor(Visited::Cpu, diary.visitor("free B"))
            .unwrap();
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
    let diary = Diary::default();
    runtime
        .add_alloc_visitor(Visited::Cpu, diary.visitor("in time"))
        .unwrap();
    let memory = runtime.cpu_allocator(Some(Node::new(1))).unwrap();
    let late = VisitorLate { memory: "CPU" };
    assert_eq!(
        runtime.add_alloc_visitor(Visited::Cpu, diary.visitor("late")),
        Err(late)
    );
    assert_eq!(
        runtime.add_free_visitor(Visited::Cpu, diary.visitor("late")),
        Err(late)
    );
    assert!(late.to_string().contains("before"));
    // Nor of allocators that are made afterwards.
    let other = runtime.cpu_allocator(Some(Node::new(3))).unwrap();
    let blocks = [take(&memory, 1000), take(&other, 1000)];
    assert_eq!(diary.names(), ["in time", "in time"]);
    let nodes: Vec<u32> = diary
        .visits()
        .iter()
        .map(|(_, visit)| visit.index)
        .collect();
    assert_eq!(nodes, [1, 3], "the node is told");
    let [one, two] = blocks;
    memory.free(one).unwrap();
    other.free(two).unwrap();
    // Other memory has lists of its own.
    runtime
        .add_alloc_visitor(Visited::Pinned(Node::ZERO), diary.visitor("pinned"))
        .unwrap();
    runtime
        .add_alloc_visitor(Visited::Gpu(Node::ZERO), diary.visitor("gpu"))
        .unwrap();
}

#[test]
fn ps_4_a_request_that_failed_makes_nobody_late() {
    let runtime = runtime(numa());
    assert!(runtime.cpu_allocator(Some(Node::new(77))).is_err());
    let diary = Diary::default();
    runtime
        .add_alloc_visitor(Visited::Cpu, diary.visitor("A"))
        .unwrap();
    assert!(runtime.cpu_allocator(None).is_ok());
}

#[test]
fn a_refused_region_is_reported_to_nobody() {
    let runtime = runtime(RuntimeConfig {
        cpu_bfc: Some(true),
        ..RuntimeConfig::default()
    });
    let diary = Diary::default();
    runtime
        .add_alloc_visitor(Visited::Cpu, diary.visitor("alloc"))
        .unwrap();
    let memory = runtime.cpu_allocator(None).unwrap();
    assert!(memory.alloc(&Request::new(1 << 60)).is_err());
    assert_eq!(diary.names().len(), 0);
}

#[test]
fn regions_that_go_with_their_allocator_are_reported_too() {
    for cpu_bfc in [Some(true), Some(false)] {
        let runtime = runtime(RuntimeConfig {
            cpu_bfc,
            ..RuntimeConfig::default()
        });
        let diary = Diary::default();
        runtime
            .add_free_visitor(Visited::Cpu, diary.visitor("free"))
            .unwrap();
        let memory = runtime.cpu_allocator(None).unwrap();
        let block = take(&memory, 1000);
        memory.free(block).unwrap();
        assert_eq!(diary.names().len(), 0, "it is kept");
        drop(memory);
        assert!(runtime.shutdown().unwrap().is_clean());
        assert_eq!(diary.names(), ["free"]);
    }
}

/// Returns the regions that the visits leave held, each once.
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

#[test]
fn visitors_of_a_node_are_called_for_its_gpus_alone_and_of_each_region_once() {
    alone_and_clean(|_| {
        let runtime = runtime(RuntimeConfig::default());
        let (zero, two, pinned) = (Diary::default(), Diary::default(), Diary::default());
        for (node, diary) in [(Node::ZERO, &zero), (Node::new(2), &two)] {
            runtime
                .add_alloc_visitor(Visited::Gpu(node), diary.visitor("alloc"))
                .unwrap();
            runtime
                .add_free_visitor(Visited::Gpu(node), diary.visitor("free"))
                .unwrap();
        }
        runtime
            .add_alloc_visitor(Visited::Pinned(Node::new(1)), pinned.visitor("alloc"))
            .unwrap();
        runtime
            .add_free_visitor(Visited::Pinned(Node::new(1)), pinned.visitor("free"))
            .unwrap();
        let options = GpuOptions {
            allow_growth: true,
            ..GpuOptions::default()
        };
        // The second device hangs on node 2.
        let memory = runtime
            .gpu_allocator(1, &options, 64 * MIB)
            .unwrap()
            .allocator;
        let late = runtime.add_alloc_visitor(Visited::Gpu(Node::new(3)), zero.visitor("alloc"));
        assert_eq!(late, Err(VisitorLate { memory: "GPU" }));
        let stream: Arc<CudaStream> = memory.context().cudarc().new_stream().unwrap();
        for round in 1..6 {
            let blocks: Vec<_> = (1..=4)
                .map(|index| memory.alloc(&stream, index * round * MIB).unwrap())
                .collect();
            let regions = held(&two);
            assert!(regions.iter().all(|visit| visit.index == 1));
            let sum: u64 = regions.iter().map(|visit| visit.range.bytes()).sum();
            assert!(
                sum >= memory.stats().live_bytes,
                "all that is in use is known"
            );
            for block in blocks {
                let at = block.addr();
                assert!(
                    regions
                        .iter()
                        .any(|visit| visit.range.start() <= at && at < visit.range.end())
                );
                memory.free(&stream, block).unwrap();
            }
            stream.synchronize().unwrap();
            memory.device_allocator().unwrap().release(u64::MAX);
        }
        assert_eq!(zero.names().len(), 0);

        let host = runtime.pinned_allocator(Some(Node::new(1))).unwrap();
        let other = runtime.pinned_allocator(Some(Node::new(3))).unwrap();
        let (one, unseen) = (take(&host, 1000), take(&other, 1000));
        assert_eq!(held(&pinned).len(), 1);
        assert_eq!(held(&pinned)[0].index, 1);
        host.free(one).unwrap();
        other.free(unseen).unwrap();

        drop((memory, host, other));
        assert!(runtime.shutdown().unwrap().is_clean());
        assert_eq!(held(&two), [], "all went with the allocator");
        assert_eq!(held(&pinned), []);
        assert!(!two.names().is_empty() && !pinned.names().is_empty());
        drop(stream);
        drop(Context::new(0));
    });
}

#[test]
fn visitors_hear_that_memory_sleeps_and_wakes() {
    alone_and_clean(|_| {
        let runtime = runtime(RuntimeConfig::default());
        let diary = Diary::default();
        runtime
            .add_alloc_visitor(Visited::Gpu(Node::ZERO), diary.visitor("alloc"))
            .unwrap();
        runtime
            .add_free_visitor(Visited::Gpu(Node::ZERO), diary.visitor("free"))
            .unwrap();
        let options = GpuOptions {
            allow_growth: true,
            ..GpuOptions::default()
        };
        let memory = runtime.gpu_allocator(0, &options, 64 * MIB).unwrap();
        let memory = memory.allocator;
        let stream: Arc<CudaStream> = memory.context().cudarc().new_stream().unwrap();
        let device = memory.device_allocator().unwrap();
        for round in 1..6 {
            let block = memory.alloc(&stream, round * MIB).unwrap();
            device.sleep().unwrap();
            assert_eq!(held(&diary), [], "asleep nothing is held");
            device.wake().unwrap();
            let at = block.addr();
            let is_known =
                |visit: &RegionVisit| visit.range.start() <= at && at < visit.range.end();
            assert!(
                held(&diary).iter().any(is_known),
                "what woke is known again"
            );
            memory.free(&stream, block).unwrap();
            // Freed asleep, it goes without a second word.
            let block = memory.alloc(&stream, 7 * MIB).unwrap();
            device.sleep().unwrap();
            memory.free(&stream, block).unwrap();
            device.wake().unwrap();
            device.release(u64::MAX);
        }
        drop(memory);
        assert!(runtime.shutdown().unwrap().is_clean());
        assert_eq!(held(&diary), []);
        drop(stream);
        drop(Context::new(0));
    });
}
