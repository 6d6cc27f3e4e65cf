//! Buffers converted to cudarc's own slices, and back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::{CudaSlice, DevicePtr, sys};
use larder_cuda::driver::Rule;
use larder_cuda::{AdoptError, BufferSlice, DeviceAllocator, DeviceBuffer};

use super::{SEEDS, Setup};
use crate::common::{alone, alone_and_clean, under_all_schedules};

const LEN: usize = 5000;

fn address(slice: &CudaSlice<u8>) -> u64 {
    slice.device_ptr(slice.stream()).0
}

#[test]
fn cudarc_orders_a_slice_behind_its_buffers_uses_and_the_next_buffer_behind_it() {
    alone_and_clean(|control| {
        let setup = Setup::new(3);
        let [a, b, c] = [0, 1, 2].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        let fives = memory.upload(a, &[5u8; LEN]).unwrap();
        under_all_schedules(control, SEEDS, || {
            let mut seen = memory.zeros::<u8>(b, LEN).unwrap();
            // The buffer is written on a stream that is not its own.
            let mut buffer = memory.zeros::<u8>(a, LEN).unwrap();
            c.memcpy_dtod(&fives, &mut buffer).unwrap();
            let mut slice: BufferSlice<u8> = buffer.into_slice().unwrap();
            assert_eq!(
                (slice.len(), slice.allocator().stats().live_bytes > 0),
                (LEN, true)
            );
            // Code that knows only cudarc's slices reads the slice, then writes it.
            let read: &CudaSlice<u8> = &slice;
            b.memcpy_dtod(read, &mut seen).unwrap();
            let write: &mut CudaSlice<u8> = &mut slice;
            c.memset_zeros(write).unwrap();
            assert_eq!(b.clone_dtoh(&seen).unwrap(), [5; LEN]);
            let mut buffer = slice.into_buffer().unwrap();
            assert_eq!(a.clone_dtoh(&buffer).unwrap(), [0; LEN]);
            b.memcpy_dtod(&fives, &mut buffer).unwrap();
            // The slice is dropped while another stream reads it. The memory's next user must write after that read.
            let slice = buffer.into_slice().unwrap();
            b.memcpy_dtod(&*slice, &mut seen).unwrap();
            drop(slice);
            let mut next = memory.zeros::<u8>(a, LEN).unwrap();
            c.memset_zeros(&mut next).unwrap();
            assert_eq!(c.clone_dtoh(&seen).unwrap(), [5; LEN]);
        });
        assert_eq!(setup.context.cudarc().check_err(), Ok(()));
        drop(fives);
        setup.context.synchronize().unwrap();
        memory.release(u64::MAX);
        assert_eq!(memory.stats().live_bytes, 0);
    });
}

#[test]
fn slices_that_a_program_exchanged_are_freed_each_by_its_address() {
    alone_and_clean(|_| {
        let setup = Setup::new(2);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        let mut one = memory.upload(a, &[1u8; LEN]).unwrap().into_slice().unwrap();
        let two = memory.upload(b, &[2u8; 2 * LEN]).unwrap();
        let mut two = two.into_slice().unwrap();
        core::mem::swap::<CudaSlice<u8>>(&mut one, &mut two);
        assert_eq!(b.clone_dtoh(&*one).unwrap(), [2; 2 * LEN]);
        drop(one);
        assert_eq!(a.clone_dtoh(&*two).unwrap(), [1; LEN]);
        // One of cudarc's own slices takes the place of ours, which is freed by hand.
        let ours = core::mem::replace::<CudaSlice<u8>>(&mut two, a.alloc_zeros(LEN).unwrap());
        drop(two);
        assert_eq!(setup.context.cudarc().check_err(), Ok(()));
        assert_eq!(a.clone_dtoh(&ours).unwrap(), [1; LEN]);
        drop(DeviceBuffer::from_cudarc(memory, ours).unwrap());
        assert_eq!(memory.stats().live_bytes, 0);
    });
}

#[test]
fn a_slice_holds_the_allocator_and_only_its_own_takes_it() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    {
        let Setup {
            context,
            memory,
            streams,
        } = Setup::new(1);
        let stream = &streams[0];
        let other = DeviceAllocator::new(&context).unwrap();
        let slice = memory.upload(stream, &[7u8; LEN]).unwrap();
        let slice = slice.into_slice().unwrap().into_cudarc();
        // The block cannot be taken or freed by its address, because the slice owns it.
        let at = address(&slice);
        assert_eq!((memory.bytes_at(at), memory.take_addr(at)), (None, None));
        assert!(memory.free_addr(stream, at).is_err());
        // The program drops its allocator; the slice keeps another reference.
        drop(memory);
        let refused = DeviceBuffer::from_cudarc(&other, slice).unwrap_err();
        assert!(matches!(refused.error, AdoptError::Block(_)), "{refused}");
        let slice = refused.value;
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [7; LEN]);
        // cudarc cannot free the slice: this is an error, and the memory stays allocated.
        drop(slice);
        let error = context.cudarc().check_err().unwrap_err();
        assert_eq!(error.0, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        control.clear_findings();
        assert!(control.used(0) > 0);
        crate::common::assert_filled(stream, at, LEN as u64, 7);
    }
    // The leaked memory holds its allocator, which holds the context.
    control.reset(2, crate::common::DEVICE_BYTES);
}

#[test]
fn a_slice_over_a_kept_block_becomes_a_buffer() {
    alone_and_clean(|_| {
        let setup = Setup::new(1);
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let block = memory.alloc(stream, LEN as u64).unwrap();
        let room = block.bytes() as usize;
        let at = memory.keep_addr(block).unwrap();
        // SAFETY: the address is that of a block that `memory` keeps, and the slice is not used.
        let long: CudaSlice<u8> = unsafe { stream.upgrade_device_ptr(at, room + 1) };
        let refused = DeviceBuffer::from_cudarc(memory, long).unwrap_err();
        assert!(
            matches!(refused.error, AdoptError::Room { .. }),
            "{refused}"
        );
        assert_eq!(refused.value.leak(), at);
        // SAFETY: the bytes are inside a block that `memory` keeps by its address.
        let mut slice: CudaSlice<u8> = unsafe { stream.upgrade_device_ptr(at, LEN) };
        stream.memset_zeros(&mut slice).unwrap();
        let buffer = DeviceBuffer::from_cudarc(memory, slice).unwrap();
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [0; LEN]);
        assert_eq!(memory.bytes_at(at), None);
        drop(buffer);
        assert_eq!(memory.stats().live_bytes, 0);
        // An empty buffer.
        let none = memory.zeros::<u8>(stream, 0).unwrap().into_slice().unwrap();
        assert!(none.is_empty());
        let none = none.into_buffer().unwrap();
        drop(none.into_slice().unwrap());
        assert_eq!(setup.context.cudarc().check_err(), Ok(()));
    });
}

/// Converts a buffer to a slice, back, and to a slice again; the buffer and the first slice are used on another stream.
fn there_and_back(setup: &Setup) -> Result<(), Box<dyn std::error::Error>> {
    let [a, b] = [0, 1].map(|index| &setup.streams[index]);
    let mut buffer = setup.memory.zeros::<u8>(a, LEN)?;
    b.memset_zeros(&mut buffer)?;
    let mut slice = buffer.into_slice().map_err(|refused| refused.error)?;
    b.memset_zeros(&mut *slice)?;
    let buffer = slice.into_buffer().map_err(|refused| refused.error)?;
    drop(buffer.into_slice().map_err(|refused| refused.error)?);
    Ok(setup.context.cudarc().check_err()?)
}

#[test]
fn a_refused_call_on_the_way_is_heard_of_and_loses_nothing() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        there_and_back(&setup).unwrap();
        control.reset_calls();
        there_and_back(&setup).unwrap();
        // cudarc leaks events that it cannot destroy, so refusals of that call are left out.
        let calls = control.call_table().into_iter();
        let calls: Vec<_> = calls
            .filter(|(name, _)| name != "cuEventDestroy_v2")
            .collect();
        assert!(calls.len() > 3, "{calls:?}");
        for (function, count) in &calls {
            for skip in 0..*count {
                control.fail(Rule::of(function).after(skip)).unwrap();
                // cudarc panics if it is refused the events of a slice.
                let _ = catch_unwind(AssertUnwindSafe(|| there_and_back(&setup).is_ok()));
                control.clear_failures();
                let _ = setup.context.cudarc().check_err();
                setup.context.synchronize().unwrap();
                setup.memory.release(u64::MAX);
                assert_eq!(setup.memory.stats().live_bytes, 0, "{function} {skip}");
                control.clear_findings();
                there_and_back(&setup).unwrap();
            }
        }
    });
}
