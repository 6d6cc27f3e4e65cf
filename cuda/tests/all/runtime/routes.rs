//! The allocator that serves each device.

use larder_core::AllocatorAttributes;
use larder_cuda::runtime::{
    Device, GpuOptions, HostAllocator, Node, Route, Runtime, RuntimeConfig,
};

use crate::common::{MIB, alone_and_clean};
use crate::runtime::rig::{numa, runtime};

fn attributes(on_host: bool, gpu_compatible: bool) -> AllocatorAttributes {
    let mut attributes = AllocatorAttributes::NONE;
    attributes.set_on_host(on_host);
    attributes.set_gpu_compatible(gpu_compatible);
    attributes
}

fn host(runtime: &Runtime, device: Device, on_host: bool, gpu_compatible: bool) -> HostAllocator {
    let attributes = attributes(on_host, gpu_compatible);
    match runtime
        .route(device, attributes, &GpuOptions::default())
        .unwrap()
    {
        Route::Host(host) => host,
        other => panic!("{other:?}"),
    }
}

fn pinned(runtime: &Runtime, node: u32) -> HostAllocator {
    let pinned = runtime.pinned_allocator(Some(Node::new(node))).unwrap();
    assert!(pinned.is_pinned());
    pinned
}

fn plain(runtime: &Runtime, node: u32) -> HostAllocator {
    runtime.cpu_allocator(Some(Node::new(node))).unwrap()
}

#[test]
fn s1_6_each_row_of_the_table_and_the_nodes() {
    alone_and_clean(|_| {
        let runtime = runtime(numa());
        let options = GpuOptions::default();
        let gpu = runtime
            .gpu_allocator(1, &options, 8 * MIB)
            .unwrap()
            .allocator;
        assert_eq!(runtime.gpu_node(0), Ok(Node::ZERO));
        assert_eq!(runtime.gpu_node(1), Ok(Node::new(2)));
        // A GPU's own memory, whatever else it should be good for.
        for gpu_compatible in [false, true] {
            let attributes = attributes(false, gpu_compatible);
            let route = runtime.route(Device::Gpu(1), attributes, &options).unwrap();
            assert_eq!(route.name(), gpu.name());
            assert!(matches!(route, Route::Gpu(served) if served.is(&gpu)));
        }
        // Its host side is of its node: upstream's pinned one is always of node 0.
        assert!(host(&runtime, Device::Gpu(1), true, true).is(&pinned(&runtime, 2)));
        assert!(host(&runtime, Device::Gpu(1), true, false).is(&plain(&runtime, 2)));
        assert!(host(&runtime, Device::Gpu(0), true, true).is(&pinned(&runtime, 0)));
        // Processors.
        for on_host in [false, true] {
            let device = Device::Cpu(Some(Node::new(3)));
            assert!(host(&runtime, device, on_host, true).is(&pinned(&runtime, 3)));
            assert!(host(&runtime, device, on_host, false).is(&plain(&runtime, 3)));
        }
        assert!(host(&runtime, Device::Cpu(None), false, false).is(&plain(&runtime, 0)));
        assert!(host(&runtime, Device::Cpu(None), false, true).is(&pinned(&runtime, 0)));
        // What is not there.
        let none = AllocatorAttributes::NONE;
        assert!(runtime.route(Device::Gpu(2), none, &options).is_err());
        assert!(
            runtime
                .route(Device::Gpu(2), attributes(true, false), &options)
                .is_err()
        );
        assert!(
            runtime
                .route(Device::Cpu(Some(Node::new(9))), none, &options)
                .is_err()
        );
        drop(gpu);
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn s1_6_forced_is_as_if_each_request_asked() {
    alone_and_clean(|_| {
        let runtime = runtime(RuntimeConfig {
            force_gpu_compatible: true,
            ..numa()
        });
        let _ = runtime
            .gpu_allocator(0, &GpuOptions::default(), 8 * MIB)
            .unwrap();
        assert!(
            host(&runtime, Device::Cpu(Some(Node::new(1))), false, false).is(&pinned(&runtime, 1))
        );
        assert!(host(&runtime, Device::Gpu(1), true, false).is(&pinned(&runtime, 2)));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn s1_6_upstreams_switch_makes_pinned_memory_node_zeros() {
    alone_and_clean(|_| {
        let runtime = runtime(RuntimeConfig {
            pinned_of_node_zero: true,
            ..numa()
        });
        let _ = runtime
            .gpu_allocator(1, &GpuOptions::default(), 8 * MIB)
            .unwrap();
        let zero = runtime.pinned_allocator(None).unwrap();
        assert!(host(&runtime, Device::Gpu(1), true, true).is(&zero));
        // Plain memory is the node's all the same.
        assert!(host(&runtime, Device::Gpu(1), true, false).is(&plain(&runtime, 2)));
        drop(zero);
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn s1_6_a_route_to_a_gpu_builds_it_and_before_that_pinned_is_plain() {
    alone_and_clean(|_| {
        let runtime = runtime(numa());
        let device = Device::Cpu(Some(Node::new(1)));
        assert!(host(&runtime, device, false, true).is(&plain(&runtime, 1)));
        let options = GpuOptions::default();
        let route = runtime
            .route(Device::Gpu(0), AllocatorAttributes::NONE, &options)
            .unwrap();
        assert!(host(&runtime, device, false, true).is_pinned());
        drop(route);
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}
