//! Buffers converted to raw parts and restored from them.

use larder_core::{Addr, RawBlock};
use larder_cuda::{AdoptError, DeviceAllocator, DeviceBuffer, RawDeviceBuffer};

use super::{SEEDS, Setup};
use crate::common::{alone_and_clean, together, under_all_schedules};

#[test]
fn parts_keep_the_order_of_streams() {
    alone_and_clean(|control| {
        let setup = Setup::new(3);
        let [a, b, c] = [0, 1, 2].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        let fives = memory.upload(a, &[5u8; 500]).unwrap();
        under_all_schedules(control, SEEDS, || {
            let mut buffer = memory.zeros::<u8>(a, 500).unwrap();
            let mut copy = memory.zeros::<u8>(c, 500).unwrap();
            b.memcpy_dtod(&fives, &mut buffer).unwrap();
            c.memcpy_dtod(&buffer, &mut copy).unwrap();
            let raw = buffer.leak().unwrap();
            assert_eq!(raw.len, 500);
            // The address is ready for work on `a`.
            crate::common::fill(a, raw.address(), 100, 6);
            // SAFETY: the parts came from a buffer of bytes, and all later work on the memory is queued on `a`.
            let buffer = unsafe { DeviceBuffer::<u8>::from_raw(memory, a, raw) }.unwrap();
            let bytes = b.clone_dtoh(&buffer).unwrap();
            assert_eq!((bytes[99], bytes[100], bytes.len()), (6, 5, 500));
            assert_eq!(a.clone_dtoh(&copy).unwrap(), [5; 500]);
        });
        drop(fives);
        setup.context.synchronize().unwrap();
        memory.release(u64::MAX);
        assert_eq!(memory.stats().live_bytes, 0);
    });
}

#[test]
fn wrong_parts_are_errors() {
    let _turn = together();
    let Setup {
        context,
        memory,
        streams,
    } = Setup::new(1);
    let stream = &streams[0];
    let restore = |memory: &DeviceAllocator, raw| {
        // SAFETY: invalid parts are refused, and valid ones have one owner.
        unsafe { DeviceBuffer::<u32>::from_raw(memory, stream, raw) }
    };
    let raw = memory.zeros::<u32>(stream, 100).unwrap().leak().unwrap();
    let unknown = |answer: Result<DeviceBuffer<u32>, AdoptError>| {
        let error = answer.unwrap_err();
        assert!(matches!(error, AdoptError::Block(_)), "{error}");
    };
    let longer = RawDeviceBuffer { len: 101, ..raw };
    let len = AdoptError::Room {
        bytes: 404,
        block_bytes: 400,
    };
    assert_eq!(restore(&memory, longer).unwrap_err(), len);
    let endless = RawDeviceBuffer {
        len: usize::MAX,
        ..raw
    };
    let error = restore(&memory, endless).unwrap_err();
    assert!(matches!(error, AdoptError::Alloc(_)), "{error}");
    let none = RawDeviceBuffer { block: None, ..raw };
    assert!(restore(&memory, none).is_err());
    let block = raw.block.unwrap();
    let moved = RawBlock {
        addr: Addr::new(block.addr.get() + 256),
        ..block
    };
    unknown(restore(
        &memory,
        RawDeviceBuffer {
            block: Some(moved),
            ..raw
        },
    ));
    unknown(restore(&DeviceAllocator::new(&context).unwrap(), raw));
    // The refused calls left the buffer as it was.
    drop(restore(&memory, raw).unwrap());
    assert_eq!(memory.stats().live_bytes, 0);
    unknown(restore(&memory, raw));
}
