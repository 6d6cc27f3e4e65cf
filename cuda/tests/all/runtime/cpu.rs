//! The host's allocators: the kind, the node, and how often each is made.

use std::sync::Barrier;

use larder_core::{
    Align, AllocError, BlockAllocator, EventNumber, FreeError, Request, StreamId, StreamPoint,
};
use larder_cuda::runtime::{
    Binding, HostAllocator, Node, Runtime, RuntimeConfig, RuntimeError, Topology, Visited,
};

use crate::runtime::rig::{Diary, holds, numa, runtime, take, write};

#[test]
fn ps_1_two_requests_for_a_node_give_the_same_allocator() {
    let runtime = runtime(numa());
    let first = runtime.cpu_allocator(Some(Node::new(1))).unwrap();
    let again = runtime.cpu_allocator(Some(Node::new(1))).unwrap();
    assert!(first.is(&again));
    let other = runtime.cpu_allocator(Some(Node::new(3))).unwrap();
    assert!(!first.is(&other), "another node has another one");
    let any = runtime.cpu_allocator(None).unwrap();
    assert!(any.is(&runtime.cpu_allocator(Some(Node::ZERO)).unwrap()));
    assert!(!any.is(&first));
}

#[test]
fn ps_1_without_numa_all_nodes_are_one_and_bound_to_none() {
    let runtime = runtime(RuntimeConfig {
        cpu_bfc: Some(true),
        ..RuntimeConfig::default()
    });
    let first = runtime.cpu_allocator(Some(Node::new(2))).unwrap();
    for node in [None, Some(Node::ZERO), Some(Node::new(99))] {
        assert!(first.is(&runtime.cpu_allocator(node).unwrap()));
    }
    assert_eq!((first.node(), first.binding()), (None, Binding::None));
}

#[test]
fn ps_2_the_name_follows_from_the_switch_the_nodes_and_the_visitors() {
    let bfc = "bfc_cpu_allocator_for_gpu";
    let table = [
        // Best fit wanted, NUMA, a visitor.
        (Some(true), true, true, bfc),
        (Some(true), true, false, bfc),
        (Some(true), false, true, bfc),
        (Some(true), false, false, bfc),
        (Some(false), true, true, "cpu_pool"),
        (Some(false), true, false, "cpu_pool"),
        (Some(false), false, true, "cpu_pool"),
        (Some(false), false, false, "cpu"),
        // Nothing said: as if wanted where there is a visitor.
        (None, true, true, bfc),
        (None, true, false, "cpu_pool"),
        (None, false, true, bfc),
        (None, false, false, "cpu"),
    ];
    for (cpu_bfc, numa, visited, name) in table {
        for frees in [false, true] {
            let config = RuntimeConfig {
                cpu_bfc,
                numa,
                ..RuntimeConfig::default()
            };
            let runtime = runtime(config);
            if visited {
                let visitor = Diary::default().visitor("A");
                let added = match frees {
                    true => runtime.add_free_visitor(Visited::Cpu, visitor),
                    false => runtime.add_alloc_visitor(Visited::Cpu, visitor),
                };
                added.unwrap();
            }
            let made = runtime.cpu_allocator(None).unwrap();
            assert_eq!(made.name(), name, "{cpu_bfc:?} {numa} {visited}");
            assert_eq!(made.node(), numa.then_some(Node::ZERO));
        }
    }
}

#[test]
fn ps_3_the_first_request_builds_its_own_node_and_the_others_later_are_bound_to_theirs() {
    let runtime = runtime(numa());
    let two = runtime.cpu_allocator(Some(Node::new(2))).unwrap();
    assert_eq!(two.node(), Some(Node::new(2)));
    for number in [0, 1] {
        let made = runtime.cpu_allocator(Some(Node::new(number))).unwrap();
        assert_eq!(made.node(), Some(Node::new(number)));
        assert!(!made.is(&two));
    }
}

#[test]
fn ps_3_a_node_that_the_machine_has_not_is_an_error() {
    let runtime = runtime(numa());
    for number in [4, 5, u32::MAX] {
        let node = Node::new(number);
        let error = runtime.cpu_allocator(Some(node)).unwrap_err();
        assert_eq!(error, RuntimeError::Node { node, nodes: 4 });
        assert!(error.to_string().contains("4 NUMA nodes"));
    }
    // The last one is there, and holes between nodes are none.
    assert!(runtime.cpu_allocator(Some(Node::new(3))).is_ok());
    let sparse = Runtime::with(numa(), Topology::made([0, 2, 5], []), Vec::new());
    assert!(sparse.cpu_allocator(Some(Node::new(5))).is_ok());
    assert!(sparse.cpu_allocator(Some(Node::new(1))).is_err());
}

#[test]
fn of_many_first_requests_one_builds() {
    for config in [numa(), RuntimeConfig::default()] {
        let runtime = runtime(config);
        let together = Barrier::new(8);
        let made: Vec<HostAllocator> = std::thread::scope(|scope| {
            let request = || {
                together.wait();
                runtime.cpu_allocator(Some(Node::new(1))).unwrap()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(request)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(made.iter().all(|one| one.is(&made[0])));
    }
}

/// The three, by how they are asked for.
fn all_kinds() -> [Runtime; 3] {
    let wanting = |cpu_bfc, numa| {
        runtime(RuntimeConfig {
            cpu_bfc,
            numa,
            ..RuntimeConfig::default()
        })
    };
    [
        wanting(Some(true), false),
        wanting(Some(false), true),
        wanting(Some(false), false),
    ]
}

#[test]
fn blocks_of_each_kind_are_apart_hold_their_bytes_and_are_known() {
    for runtime in all_kinds() {
        let memory = runtime.cpu_allocator(None).unwrap();
        let name = memory.name();
        let sizes = [1, 64, 1000, 4096, 100_000, 3 << 20];
        let blocks: Vec<_> = sizes.iter().map(|bytes| take(&memory, *bytes)).collect();
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!(memory.requested_bytes(block), Some(sizes[index]), "{name}");
            assert!(block.bytes() >= sizes[index]);
            assert!(block.addr().get().is_multiple_of(64), "{name}");
            write(block, index as u8);
            for other in &blocks[..index] {
                assert!(!block.range().overlaps(other.range()));
                assert_ne!(memory.allocation_id(block), memory.allocation_id(other));
            }
        }
        assert_eq!(memory.live_blocks(), 6, "{name}");
        assert_eq!(memory.stats().allocations, 6, "{name}");
        assert!(memory.stats().live_bytes >= sizes.iter().sum());
        for (index, block) in blocks.into_iter().enumerate() {
            assert!(holds(&block, index as u8), "{name}");
            memory.free(block).unwrap();
        }
        assert_eq!((memory.live_blocks(), memory.stats().live_bytes), (0, 0));
        memory.trim();
        assert_eq!(memory.stats().reserved_bytes, 0, "{name}");
    }
}

#[test]
fn alignment_is_kept_and_what_cannot_be_is_an_error() {
    for runtime in all_kinds() {
        let memory = runtime.cpu_allocator(None).unwrap();
        for log2 in [0, 6, 8, 12, 16] {
            let align = Align::new(1 << log2).unwrap();
            let request = Request::new(100).aligned(align);
            let block = memory.alloc(&request).unwrap().block;
            assert!(block.addr().is_aligned(align), "{} {log2}", memory.name());
            memory.free(block).unwrap();
        }
        let zero = memory.alloc(&Request::new(0));
        assert_eq!(zero, Err(AllocError::ZeroSize));
        for bytes in [u64::MAX, u64::MAX / 2, 1 << 60] {
            assert!(memory.alloc(&Request::new(bytes)).is_err());
        }
        assert_eq!(memory.live_blocks(), 0);
    }
}

#[test]
fn a_block_of_another_allocator_is_refused_and_comes_back() {
    let runtimes = all_kinds();
    let memories = runtimes
        .each_ref()
        .map(|runtime| runtime.cpu_allocator(None).unwrap());
    for from in &memories {
        for to in memories.iter().filter(|to| !to.is(from)) {
            let block = take(from, 500);
            let rejected = to.free(block).unwrap_err();
            assert_eq!(rejected.error, FreeError::Unknown);
            assert_eq!(to.requested_bytes(&rejected.value), None);
            from.free(rejected.value).unwrap();
        }
    }
    assert!(memories.iter().all(|memory| memory.live_blocks() == 0));
}

#[test]
fn a_free_behind_a_point_is_kept_or_refused_and_never_given_again_too_soon() {
    let point = StreamPoint {
        stream: StreamId::MAIN,
        event: EventNumber::new(1),
    };
    for runtime in all_kinds() {
        let memory = runtime.cpu_allocator(None).unwrap();
        let block = take(&memory, 500);
        match memory.free_after(block, point) {
            // The best fit has streams.
            Ok(()) => assert_eq!(memory.name(), "bfc_cpu_allocator_for_gpu"),
            Err(rejected) => {
                assert_eq!(rejected.error, FreeError::NoStreams);
                memory.free(rejected.value).unwrap();
            }
        }
    }
}

#[test]
fn the_best_fit_keeps_its_limit_and_collects_no_regions() {
    let runtime = runtime(RuntimeConfig {
        cpu_bfc: Some(true),
        cpu_limit_bytes: 4 << 20,
        ..RuntimeConfig::default()
    });
    let memory = runtime.cpu_allocator(None).unwrap();
    assert_eq!(memory.stats().limit_bytes, 4 << 20);
    let all = take(&memory, 4 << 20);
    assert!(matches!(
        memory.alloc(&Request::new(1)),
        Err(AllocError::OutOfMemory(_))
    ));
    memory.free(all).unwrap();
    let small = take(&memory, 1);
    let full = memory.alloc(&Request::new((4 << 20) - 255));
    assert!(full.is_err(), "one granule is in use");
    memory.free(small).unwrap();
}

#[test]
fn memory_of_blocks_that_are_out_is_left_alone_and_reported() {
    for runtime in all_kinds() {
        let memory = runtime.cpu_allocator(None).unwrap();
        let name = memory.name();
        let (one, two) = (take(&memory, 5000), take(&memory, 70_000));
        write(&one, 3);
        write(&two, 4);
        drop(memory);
        let report = runtime.shutdown().unwrap();
        assert_eq!(report.blocks(), 2, "{name}");
        assert!(report.to_string().contains(name));
        assert!(!report.left[0].shared);
        assert!(holds(&one, 3) && holds(&two, 4), "{name}: still ours");
    }
}

#[test]
fn an_allocator_that_is_held_lives_on_and_takes_its_blocks() {
    for runtime in all_kinds() {
        let memory = runtime.cpu_allocator(None).unwrap();
        let block = take(&memory, 5000);
        let again = runtime.clone();
        let runtime = runtime.shutdown().expect_err("not the last clone");
        drop(again);
        let report = runtime.shutdown().unwrap();
        assert!(report.left[0].shared && report.left[0].blocks == 1);
        memory.free(block).unwrap();
        let more = take(&memory, 100);
        memory.free(more).unwrap();
    }
}

#[test]
fn nothing_out_is_a_clean_end() {
    for runtime in all_kinds() {
        let memory = runtime.cpu_allocator(None).unwrap();
        let block = take(&memory, 5000);
        memory.free(block).unwrap();
        drop(memory);
        assert!(runtime.shutdown().unwrap().is_clean());
    }
}

#[test]
fn with_logging_each_call_has_a_record_and_without_there_is_none() {
    for (cpu_bfc, numa) in [
        (Some(true), false),
        (Some(false), true),
        (Some(false), false),
    ] {
        for log_memory in [false, true] {
            let runtime = runtime(RuntimeConfig {
                cpu_bfc,
                numa,
                log_memory,
                ..RuntimeConfig::default()
            });
            let memory = runtime.cpu_allocator(None).unwrap();
            let block = take(&memory, 5000);
            write(&block, 6);
            let granted = block.bytes() as i64;
            assert_eq!(memory.requested_bytes(&block), Some(5000));
            assert!(memory.owns(&block) && memory.tracks_sizes());
            memory.free(block).unwrap();
            assert!(memory.alloc(&Request::new(0)).is_err());
            let mut records = Vec::new();
            memory.drain_log(|record| records.push(record));
            let Some(stats) = memory.log_stats() else {
                assert!(!log_memory && records.is_empty());
                continue;
            };
            assert!(log_memory);
            assert_eq!((stats.live_blocks, stats.failures), (0, 1));
            assert_eq!(stats.high_water_bytes as i64, granted);
            let bytes: Vec<i64> = records.iter().map(|record| record.bytes).collect();
            assert_eq!(bytes, [granted, -granted]);
            assert!(records[0].tick <= records[1].tick);
            let out = take(&memory, 100);
            drop(memory);
            assert_eq!(runtime.shutdown().unwrap().blocks(), 1);
            write(&out, 1);
        }
    }
}
