//! The allocator that serves each device.

use larder_core::AllocatorAttributes;
use larder_cuda::runtime::{Device, GpuOptions, HostAllocator, Node, Route, Runtime, RuntimeError};

use crate::runtime::rig::{cpu, gpu, numa, on_gpus, pinned};

/// The memory that a row expects.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Gpu,
    /// Memory of a node.
    Pinned(u32),
    Plain(u32),
    Error,
}

use Memory::{Error, Gpu, Pinned, Plain};

const fn of_node(node: u32) -> Device {
    Device::Cpu(Some(Node::new(node)))
}

fn route(
    runtime: &Runtime,
    device: Device,
    on_host: bool,
    gpu_compatible: bool,
) -> Result<Route, RuntimeError> {
    let mut attributes = AllocatorAttributes::NONE;
    attributes.set_on_host(on_host);
    attributes.set_gpu_compatible(gpu_compatible);
    runtime.route(device, attributes, &GpuOptions::default())
}

/// A device, whether host memory is requested, whether GPUs have to access it directly, and the expected memory.
type Row = (Device, bool, bool, Memory);

#[track_caller]
fn check(runtime: &Runtime, rows: &[Row]) {
    let is = |host: HostAllocator, expected: HostAllocator| host.is(&expected);
    for row @ (device, on_host, gpu_compatible, memory) in rows {
        let fits = match (route(runtime, *device, *on_host, *gpu_compatible), *memory) {
            (Ok(Route::Gpu(served)), Gpu) => {
                *device == Device::Gpu(served.id()) && served.is(&gpu(runtime, served.id(), 8))
            }
            (Ok(Route::Host(host)), Pinned(node)) => {
                host.is_pinned() && is(host, pinned(runtime, node))
            }
            (Ok(Route::Host(host)), Plain(node)) => is(host, cpu(runtime, node)),
            (Err(_), Error) => true,
            _ => false,
        };
        assert!(fits, "{row:?}");
    }
}

#[test]
fn s1_6_each_row_of_the_table_and_the_nodes() {
    on_gpus(numa(), |runtime| {
        let gpu = gpu(runtime, 1, 8);
        assert_eq!(runtime.gpu_node(0), Ok(Node::ZERO));
        assert_eq!(runtime.gpu_node(1), Ok(Node::new(2)));
        let served = route(runtime, Device::Gpu(1), false, false).unwrap();
        assert_eq!(served.name(), gpu.name());
        check(
            runtime,
            &[
                (Device::Gpu(1), false, false, Gpu),
                (Device::Gpu(1), false, true, Gpu),
                // Host memory for a GPU is of the GPU's node. Upstream's pinned memory is always of node 0.
                (Device::Gpu(1), true, true, Pinned(2)),
                (Device::Gpu(1), true, false, Plain(2)),
                (Device::Gpu(0), true, true, Pinned(0)),
                (of_node(3), false, true, Pinned(3)),
                (of_node(3), false, false, Plain(3)),
                (of_node(3), true, true, Pinned(3)),
                (of_node(3), true, false, Plain(3)),
                (Device::Cpu(None), false, false, Plain(0)),
                (Device::Cpu(None), false, true, Pinned(0)),
                (Device::Gpu(2), false, false, Error),
                (Device::Gpu(2), true, false, Error),
                (of_node(9), false, false, Error),
            ],
        );
    });
}

#[test]
fn s1_6_forced_is_as_if_each_request_asked() {
    let mut config = numa();
    config.force_gpu_compatible = true;
    on_gpus(config, |runtime| {
        let _ = gpu(runtime, 0, 8);
        let rows = [
            (of_node(1), false, false, Pinned(1)),
            (Device::Gpu(1), true, false, Pinned(2)),
        ];
        check(runtime, &rows);
    });
}

#[test]
fn s1_6_upstreams_switch_makes_pinned_memory_node_zeros() {
    let mut config = numa();
    config.pinned_of_node_zero = true;
    on_gpus(config, |runtime| {
        let _ = gpu(runtime, 1, 8);
        let rows = [
            (Device::Gpu(1), true, true, Pinned(0)),
            // The switch does not change plain memory.
            (Device::Gpu(1), true, false, Plain(2)),
        ];
        check(runtime, &rows);
    });
}

#[test]
fn s1_6_a_route_to_a_gpu_builds_it_and_before_that_pinned_is_plain() {
    on_gpus(numa(), |runtime| {
        check(runtime, &[(of_node(1), false, true, Plain(1))]);
        let served = route(runtime, Device::Gpu(0), false, false);
        assert!(matches!(served, Ok(Route::Gpu(_))), "{served:?}");
        check(runtime, &[(of_node(1), false, true, Pinned(1))]);
    });
}
