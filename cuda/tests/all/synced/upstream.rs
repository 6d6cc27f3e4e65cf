//! Caffe's own tests of `SyncedMemory`, retold.

use larder_cuda::synced::Head;

use crate::common::{assert_filled, fill, together};
use crate::synced::Setup;

const LEN: usize = 10;

#[test]
fn synced_upstream_initialization() {
    let _turn = together();
    let setup = Setup::new();
    for kind in setup.kinds() {
        let memory = setup.make::<u8>(&kind, LEN);
        assert_eq!(memory.head(), Head::Uninitialized);
        assert_eq!((memory.len(), memory.num_bytes()), (10, 10));
        let boxed = Box::new(setup.make::<f32>(&kind, LEN));
        assert_eq!(boxed.num_bytes(), 40);
    }
}

#[test]
fn synced_upstream_allocation() {
    let _turn = together();
    let setup = Setup::new();
    for kind in setup.kinds() {
        let mut memory = setup.make::<u8>(&kind, LEN);
        assert_eq!(memory.cpu().unwrap().len(), LEN);
        assert_eq!(memory.gpu().unwrap().len(), LEN);
        assert_eq!(memory.cpu_mut().unwrap().len(), LEN);
        assert_eq!(memory.gpu_mut().unwrap().len(), LEN);
        assert!(memory.owns_host() && memory.owns_device());
        let mut host = setup.make::<u8>(&kind, LEN);
        host.cpu().unwrap();
        host.cpu_mut().unwrap();
        assert!(host.owns_host() && !host.owns_device());
        let mut device = setup.make::<u8>(&kind, LEN);
        device.gpu().unwrap();
        device.gpu_mut().unwrap();
        assert!(!device.owns_host() && device.owns_device());
    }
}

#[test]
fn synced_upstream_cpu_write() {
    let _turn = together();
    let setup = Setup::new();
    for kind in setup.kinds() {
        let mut memory = setup.make::<u8>(&kind, LEN);
        for value in [1, 2] {
            memory.cpu_mut().unwrap().fill(value);
            assert_eq!(memory.head(), Head::Host);
            assert_eq!(memory.cpu().unwrap(), [value; LEN]);
            assert_eq!(memory.head(), Head::Host);
        }
    }
}

#[test]
fn synced_upstream_gpu_read() {
    let _turn = together();
    let setup = Setup::new();
    for kind in setup.kinds() {
        let mut memory = setup.make::<u8>(&kind, LEN);
        for value in [1, 2] {
            memory.cpu_mut().unwrap().fill(value);
            assert_eq!(memory.head(), Head::Host);
            let view = memory.gpu().unwrap();
            let copy = setup.stream.clone_dtoh(&view).unwrap();
            assert_eq!(copy, [value; LEN]);
            assert_eq!(memory.head(), Head::Synced);
        }
    }
}

#[test]
fn synced_upstream_gpu_write() {
    use cudarc::driver::DevicePtrMut;
    let _turn = together();
    let setup = Setup::new();
    for kind in setup.kinds() {
        let mut memory = setup.make::<u8>(&kind, LEN);
        for value in [1, 2] {
            {
                let mut view = memory.gpu_mut().unwrap();
                let (at, _guard) = view.device_ptr_mut(&setup.stream);
                fill(&setup.stream, at, LEN as u64, value);
                assert_filled(&setup.stream, at, LEN as u64, value);
            }
            assert_eq!(memory.head(), Head::Device);
            assert_eq!(memory.cpu().unwrap(), [value; LEN]);
            assert_eq!(memory.head(), Head::Synced);
        }
    }
}
