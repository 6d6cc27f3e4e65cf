//! The host's allocators: their kind and node, and that each is made once. `conformance.rs` tests their blocks.

use std::sync::Barrier;

use larder_core::{AllocError, BlockAllocator, Request};
use larder_cuda::runtime::{
    Binding, Node, Runtime, RuntimeConfig, RuntimeError, Topology, Visited,
};

use crate::runtime::rig::{
    Diary, cpu, holds, host_kind, host_kinds, numa, runtime, take, with, write,
};

#[test]
fn ps_1_two_requests_for_a_node_give_the_same_allocator() {
    let runtime = runtime(numa());
    let first = cpu(&runtime, 1);
    assert!(first.is(&cpu(&runtime, 1)));
    assert!(!first.is(&cpu(&runtime, 3)), "another node has another one");
    let any = runtime.cpu_allocator(None).unwrap();
    assert!(any.is(&cpu(&runtime, 0)) && !any.is(&first));
}

#[test]
fn ps_1_without_numa_all_nodes_are_one_and_bound_to_none() {
    let runtime = runtime(host_kind(true, false));
    let first = cpu(&runtime, 2);
    for node in [None, Some(Node::ZERO), Some(Node::new(99))] {
        assert!(first.is(&runtime.cpu_allocator(node).unwrap()));
    }
    assert_eq!((first.node(), first.binding()), (None, Binding::None));
}

#[test]
fn ps_2_the_name_follows_from_the_switch_the_nodes_and_the_visitors() {
    let bfc = "bfc_cpu_allocator_for_gpu";
    let table = [
        // The switch for best fit, NUMA, a visitor, and the expected name.
        (Some(true), true, true, bfc),
        (Some(true), true, false, bfc),
        (Some(true), false, true, bfc),
        (Some(true), false, false, bfc),
        (Some(false), true, true, "cpu_pool"),
        (Some(false), true, false, "cpu_pool"),
        (Some(false), false, true, "cpu_pool"),
        (Some(false), false, false, "cpu"),
        // Without the switch, a visitor means best fit.
        (None, true, true, bfc),
        (None, true, false, "cpu_pool"),
        (None, false, true, bfc),
        (None, false, false, "cpu"),
    ];
    for (cpu_bfc, numa, visited, name) in table {
        for frees in [false, true] {
            let runtime = runtime(host_kind(cpu_bfc, numa));
            if visited {
                let visitor = Diary::default().visitor("A");
                let added = match frees {
                    true => runtime.add_free_visitor(Visited::Cpu, visitor),
                    false => runtime.add_alloc_visitor(Visited::Cpu, visitor),
                };
                added.unwrap();
            }
            let made = runtime.cpu_allocator(None).unwrap();
            assert_eq!(made.name(), name, "{cpu_bfc:?} {numa} {visited} {frees}");
            assert_eq!(made.node(), numa.then_some(Node::ZERO));
        }
    }
}

#[test]
fn ps_3_the_first_request_builds_its_own_node_and_the_others_later_are_bound_to_theirs() {
    let runtime = runtime(numa());
    let two = cpu(&runtime, 2);
    assert_eq!(two.node(), Some(Node::new(2)));
    for number in [0, 1] {
        let made = cpu(&runtime, number);
        assert_eq!(made.node(), Some(Node::new(number)));
        assert!(!made.is(&two));
    }
}

#[test]
fn ps_3_a_node_that_the_machine_has_not_is_an_error() {
    let four = runtime(numa());
    for number in [4, 5, u32::MAX] {
        let node = Node::new(number);
        let error = four.cpu_allocator(Some(node)).unwrap_err();
        assert_eq!(error, RuntimeError::Node { node, nodes: 4 });
        assert!(error.to_string().contains("4 NUMA nodes"));
    }
    // The last node exists, but the numbers between sparse nodes do not.
    cpu(&four, 3);
    let sparse = Runtime::with(numa(), Topology::made([0, 2, 5], []), Vec::new());
    cpu(&sparse, 5);
    assert!(sparse.cpu_allocator(Some(Node::new(1))).is_err());
}

#[test]
fn of_many_first_requests_one_builds() {
    for config in [numa(), with(|_| ())] {
        let runtime = runtime(config);
        let together = Barrier::new(8);
        let request = || {
            together.wait();
            cpu(&runtime, 1)
        };
        std::thread::scope(|scope| {
            let threads = [(); 8].map(|()| scope.spawn(request));
            let made = threads.map(|thread| thread.join().unwrap());
            assert!(made.iter().all(|one| one.is(&made[0])));
        });
    }
}

#[test]
fn the_best_fit_keeps_its_limit_and_collects_no_regions() {
    let runtime = runtime(with(|config| {
        (config.cpu_bfc, config.cpu_limit_bytes) = (Some(true), 4 << 20);
    }));
    let memory = runtime.cpu_allocator(None).unwrap();
    assert_eq!(memory.stats().limit_bytes, 4 << 20);
    let all = take(&memory, 4 << 20);
    let more = memory.alloc(&Request::new(1));
    assert!(matches!(more, Err(AllocError::OutOfMemory(_))), "{more:?}");
    memory.free(all).unwrap();
    let small = take(&memory, 1);
    let full = memory.alloc(&Request::new((4 << 20) - 255));
    assert!(full.is_err(), "one granule is in use");
    memory.free(small).unwrap();
}

#[test]
fn memory_of_blocks_that_are_out_is_left_alone_and_reported() {
    for config in host_kinds() {
        let runtime = runtime(config);
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
    for config in host_kinds() {
        let runtime = runtime(config);
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
fn with_logging_each_call_has_a_record_and_without_there_is_none() {
    for config in host_kinds() {
        for log_memory in [false, true] {
            let runtime = runtime(RuntimeConfig {
                log_memory,
                ..config.clone()
            });
            let memory = runtime.cpu_allocator(None).unwrap();
            let block = take(&memory, 5000);
            write(&block, 6);
            let granted = block.bytes() as i64;
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
