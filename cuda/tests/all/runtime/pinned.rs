//! Pinned memory: one allocator for each node, once there is a GPU.

use larder_core::{AllocError, BlockAllocator, Request};
use larder_cuda::runtime::{Node, RuntimeError};

use crate::common::MIB;
use crate::runtime::rig::{cpu, gpu, holds, numa, on_gpus, pinned, runtime, take, with, write};

#[test]
fn ps_5_before_any_gpu_pinned_memory_is_the_nodes_plain_memory() {
    let runtime = runtime(numa());
    let plain = pinned(&runtime, 2);
    assert!(plain.is(&cpu(&runtime, 2)) && !plain.is_pinned());
    assert!(runtime.pinned_allocator(Some(Node::new(9))).is_err());
}

#[test]
fn ps_5_with_gpus_and_none_that_has_an_allocator_it_is_an_error() {
    let runtime = runtime(with(|_| ()));
    runtime.enable_gpus();
    for node in [None, Some(Node::ZERO), Some(Node::new(3))] {
        let error = runtime.pinned_allocator(node).unwrap_err();
        assert_eq!(error, RuntimeError::NoGpuAllocator);
        assert!(error.to_string().contains("ask for one first"));
    }
}

#[test]
fn ps_5_a_gpu_allocator_ends_that() {
    on_gpus(with(|_| ()), |runtime| {
        runtime.enable_gpus();
        assert!(runtime.pinned_allocator(None).is_err());
        let _gpu = gpu(runtime, 1, 8);
        let pinned = runtime.pinned_allocator(None).unwrap();
        assert_eq!((pinned.name(), pinned.is_pinned()), ("gpu_host_bfc", true));
        let context = pinned.context().unwrap();
        assert_eq!(context.ordinal(), 1, "of the first GPU that has one");
        let block = take(&pinned, 10_000);
        write(&block, 5);
        assert!(holds(&block, 5));
        pinned.free(block).unwrap();
    });
}

#[test]
fn ps_6_each_node_has_its_own_with_numa_and_without() {
    for config in [with(|_| ()), numa()] {
        on_gpus(config, |runtime| {
            let _ = gpu(runtime, 0, 8);
            let nodes = [0, 1, 2, 3].map(|node| pinned(runtime, node));
            for (index, one) in nodes.iter().enumerate() {
                assert!(one.is(&pinned(runtime, index as u32)), "node {index}");
                assert!(nodes[index + 1..].iter().all(|other| !one.is(other)));
            }
            assert!(nodes[0].is(&runtime.pinned_allocator(None).unwrap()));
            let node = Node::new(4);
            let error = runtime.pinned_allocator(Some(node)).unwrap_err();
            assert_eq!(error, RuntimeError::Node { node, nodes: 4 });
            let block = take(&nodes[1], 100);
            let rejected = nodes[0].free(block).unwrap_err();
            nodes[1].free(rejected.value).unwrap();
        });
    }
}

#[test]
fn ps_6_upstreams_way_is_node_zero_always() {
    let config = with(|config| (config.numa, config.pinned_of_node_zero) = (true, true));
    on_gpus(config, |runtime| {
        let _ = gpu(runtime, 0, 8);
        let zero = runtime.pinned_allocator(None).unwrap();
        for node in [0, 1, 77] {
            assert!(zero.is(&pinned(runtime, node)), "node {node}");
        }
    });
}

#[test]
fn the_limit_of_pinned_memory_is_each_nodes() {
    on_gpus(
        with(|config| config.pinned_limit_bytes = 4 * MIB),
        |runtime| {
            let _ = gpu(runtime, 0, 8);
            for node in [0, 1] {
                let pinned = pinned(runtime, node);
                let all = take(&pinned, 4 * MIB);
                let more = pinned.alloc(&Request::new(1));
                assert!(matches!(more, Err(AllocError::OutOfMemory(_))), "{more:?}");
                pinned.free(all).unwrap();
            }
        },
    );
}
