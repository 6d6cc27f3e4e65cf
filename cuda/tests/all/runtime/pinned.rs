//! Pinned memory: one allocator for each node, once there is a GPU.

use larder_core::{AllocError, BlockAllocator, Request};
use larder_cuda::runtime::{GpuOptions, Node, RuntimeConfig, RuntimeError};

use crate::common::{MIB, alone_and_clean};
use crate::runtime::rig::{holds, numa, runtime, take, write};

#[test]
fn ps_5_before_any_gpu_pinned_memory_is_the_nodes_plain_memory() {
    let runtime = runtime(numa());
    let cpu = runtime.cpu_allocator(Some(Node::new(2))).unwrap();
    let pinned = runtime.pinned_allocator(Some(Node::new(2))).unwrap();
    assert!(pinned.is(&cpu));
    assert!(!pinned.is_pinned());
    assert!(runtime.pinned_allocator(Some(Node::new(9))).is_err());
}

#[test]
fn ps_5_with_gpus_and_none_that_has_an_allocator_it_is_an_error() {
    let runtime = runtime(RuntimeConfig::default());
    runtime.enable_gpus();
    for node in [None, Some(Node::ZERO), Some(Node::new(3))] {
        let error = runtime.pinned_allocator(node).unwrap_err();
        assert_eq!(error, RuntimeError::NoGpuAllocator);
        assert!(error.to_string().contains("ask for one first"));
    }
}

#[test]
fn ps_5_a_gpu_allocator_ends_that() {
    alone_and_clean(|_| {
        let runtime = runtime(RuntimeConfig::default());
        runtime.enable_gpus();
        assert!(runtime.pinned_allocator(None).is_err());
        let gpu = runtime
            .gpu_allocator(1, &GpuOptions::default(), 8 * MIB)
            .unwrap();
        let pinned = runtime.pinned_allocator(None).unwrap();
        assert_eq!((pinned.name(), pinned.is_pinned()), ("gpu_host_bfc", true));
        let context = pinned.context().unwrap();
        assert_eq!(context.ordinal(), 1, "of the first GPU that has one");
        let block = take(&pinned, 10_000);
        write(&block, 5);
        assert!(holds(&block, 5));
        pinned.free(block).unwrap();
        drop((gpu, pinned));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn ps_6_each_node_has_its_own_with_numa_and_without() {
    alone_and_clean(|_| {
        for config in [RuntimeConfig::default(), numa()] {
            let runtime = runtime(config);
            let _ = runtime
                .gpu_allocator(0, &GpuOptions::default(), 8 * MIB)
                .unwrap();
            let nodes = [0, 1, 2, 3].map(|number| {
                let node = Some(Node::new(number));
                let one = runtime.pinned_allocator(node).unwrap();
                assert!(one.is(&runtime.pinned_allocator(node).unwrap()));
                one
            });
            for (index, one) in nodes.iter().enumerate() {
                assert!(nodes[index + 1..].iter().all(|other| !one.is(other)));
            }
            assert!(nodes[0].is(&runtime.pinned_allocator(None).unwrap()));
            let node = Node::new(4);
            let error = runtime.pinned_allocator(Some(node)).unwrap_err();
            assert_eq!(error, RuntimeError::Node { node, nodes: 4 });
            // A block of one is none of another.
            let block = take(&nodes[1], 100);
            let rejected = nodes[0].free(block).unwrap_err();
            nodes[1].free(rejected.value).unwrap();
            drop(nodes);
            assert!(runtime.shutdown().unwrap().is_clean());
        }
    });
}

#[test]
fn ps_6_upstreams_way_is_node_zero_always() {
    alone_and_clean(|_| {
        let runtime = runtime(RuntimeConfig {
            pinned_of_node_zero: true,
            ..numa()
        });
        let _ = runtime
            .gpu_allocator(0, &GpuOptions::default(), 8 * MIB)
            .unwrap();
        let zero = runtime.pinned_allocator(None).unwrap();
        for number in [0, 1, 77] {
            assert!(zero.is(&runtime.pinned_allocator(Some(Node::new(number))).unwrap()));
        }
        drop(zero);
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn the_limit_of_pinned_memory_is_each_nodes() {
    alone_and_clean(|_| {
        let runtime = runtime(RuntimeConfig {
            pinned_limit_bytes: 4 * MIB,
            ..RuntimeConfig::default()
        });
        let _ = runtime
            .gpu_allocator(0, &GpuOptions::default(), 8 * MIB)
            .unwrap();
        for number in [0, 1] {
            let pinned = runtime.pinned_allocator(Some(Node::new(number))).unwrap();
            let all = take(&pinned, 4 * MIB);
            let more = pinned.alloc(&Request::new(1));
            assert!(matches!(more, Err(AllocError::OutOfMemory(_))));
            pinned.free(all).unwrap();
        }
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}
