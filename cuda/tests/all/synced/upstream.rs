//! Caffe's own tests of `SyncedMemory`, ported.

use larder_cuda::SyncedMemory;
use larder_cuda::synced::{Head, HostMemory};

use crate::common::together;
use crate::synced::{Setup, write_on};

const LEN: usize = 10;

/// Runs a case on bytes with each kind of host memory.
fn each(test: impl Fn(&Setup, &HostMemory, SyncedMemory<'_, u8>)) {
    let _turn = together();
    let setup = Setup::new();
    for kind in setup.kinds() {
        test(&setup, &kind, setup.make(&kind, LEN));
    }
}

#[test]
fn synced_upstream_initialization() {
    each(|setup, kind, memory| {
        assert_eq!(memory.head(), Head::Uninitialized);
        assert_eq!((memory.len(), memory.num_bytes()), (10, 10));
        let boxed = Box::new(setup.make::<f32>(kind, LEN));
        assert_eq!(boxed.num_bytes(), 40);
    });
}

#[test]
fn synced_upstream_allocation() {
    each(|setup, kind, mut memory| {
        assert_eq!(memory.cpu().unwrap().len(), LEN);
        assert_eq!(memory.gpu().unwrap().len(), LEN);
        assert_eq!(memory.cpu_mut().unwrap().len(), LEN);
        assert_eq!(memory.gpu_mut().unwrap().len(), LEN);
        assert!(memory.owns_host() && memory.owns_device());
        let mut host = setup.make::<u8>(kind, LEN);
        host.cpu().unwrap();
        host.cpu_mut().unwrap();
        assert!(host.owns_host() && !host.owns_device());
        let mut device = setup.make::<u8>(kind, LEN);
        device.gpu().unwrap();
        device.gpu_mut().unwrap();
        assert!(!device.owns_host() && device.owns_device());
    });
}

#[test]
fn synced_upstream_cpu_write() {
    each(|_, _, mut memory| {
        for value in [1, 2] {
            memory.cpu_mut().unwrap().fill(value);
            assert_eq!(memory.head(), Head::Host);
            assert_eq!(memory.cpu().unwrap(), [value; LEN]);
            assert_eq!(memory.head(), Head::Host);
        }
    });
}

#[test]
fn synced_upstream_gpu_read() {
    each(|setup, _, mut memory| {
        for value in [1, 2] {
            memory.cpu_mut().unwrap().fill(value);
            assert_eq!(memory.head(), Head::Host);
            assert_eq!(setup.seen(&mut memory), [value; LEN]);
            assert_eq!(memory.head(), Head::Synced);
        }
    });
}

#[test]
fn synced_upstream_gpu_write() {
    each(|setup, _, mut memory| {
        for value in [1, 2] {
            write_on(&setup.stream, &mut memory, value);
            assert_eq!(memory.head(), Head::Device);
            assert_eq!(memory.cpu().unwrap(), [value; LEN]);
            assert_eq!(memory.head(), Head::Synced);
        }
    });
}
