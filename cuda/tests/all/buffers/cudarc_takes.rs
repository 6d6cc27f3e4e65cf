//! Buffers passed to every function of cudarc's driver interface that takes cudarc's slice traits.

use core::ops::Range;

use cudarc::driver::{DevicePtr, DevicePtrMut, DeviceSlice};
use larder_core::AllocError;
use larder_cuda::{DeviceAllocError, DeviceBuffer};

use super::Setup;
use crate::common::{alone_and_clean, together};

#[test]
fn copies_fills_and_clones_take_buffers() {
    let _turn = together();
    let Setup {
        memory, streams, ..
    } = Setup::new(1);
    let stream = &streams[0];
    let numbers: Vec<u32> = (0..100).collect();
    let mut one = memory.upload(stream, &numbers).unwrap();
    assert_eq!(stream.clone_dtoh(&one).unwrap(), numbers);
    let mut two = memory.zeros::<u32>(stream, 100).unwrap();
    assert_eq!(stream.clone_dtoh(&two).unwrap(), [0; 100]);
    stream.memcpy_dtod(&one, &mut two).unwrap();
    assert_eq!(stream.clone_dtoh(&two).unwrap(), numbers);
    stream.memset_zeros(&mut one).unwrap();
    assert_eq!(stream.clone_dtoh(&one).unwrap(), [0; 100]);
    stream.memcpy_htod(&[7; 100], &mut one).unwrap();
    let mut host = [0; 100];
    stream.memcpy_dtoh(&one, &mut host).unwrap();
    assert_eq!(host, [7; 100]);
    let theirs = stream.clone_dtod(&two).unwrap();
    assert_eq!(stream.clone_dtoh(&theirs).unwrap(), numbers);
    stream.memcpy_dtod(&theirs, &mut one).unwrap();
    assert_eq!(stream.clone_dtoh(&one).unwrap(), numbers);
}

#[test]
fn parts_are_taken_as_well() {
    let _turn = together();
    let Setup {
        memory, streams, ..
    } = Setup::new(1);
    let stream = &streams[0];
    let numbers: Vec<u16> = (0..10).collect();
    let mut buffer = memory.upload(stream, &numbers).unwrap();
    assert_eq!(stream.clone_dtoh(&buffer.slice(3..6)).unwrap(), [3, 4, 5]);
    assert_eq!(stream.clone_dtoh(&buffer.slice(..=1)).unwrap(), [0, 1]);
    let inner = buffer.slice(2..).slice(1..3);
    assert_eq!(stream.clone_dtoh(&inner).unwrap(), [3, 4]);
    stream.memset_zeros(&mut buffer.slice_mut(8..)).unwrap();
    {
        let (mut low, mut high) = buffer.split_at_mut(5);
        assert_eq!((low.len(), high.len()), (5, 5));
        stream
            .memcpy_dtod(&low.as_view().slice(..2), &mut high.slice_mut(1..3))
            .unwrap();
        stream.memcpy_htod(&[70, 71], &mut low).unwrap();
        assert_eq!(stream.clone_dtoh(&high).unwrap(), [5, 0, 1, 0, 0]);
    }
    let expected = [70, 71, 2, 3, 4, 5, 0, 1, 0, 0];
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), expected);
}

#[test]
fn a_part_that_is_not_inside_is_none() {
    let _turn = together();
    let Setup {
        memory, streams, ..
    } = Setup::new(1);
    let mut buffer = memory.zeros::<u64>(&streams[0], 10).unwrap();
    let backwards = Range { start: 6, end: 5 };
    assert!(buffer.try_slice(backwards.clone()).is_none());
    assert!(buffer.try_slice_mut(backwards).is_none());
    assert!(buffer.try_slice(..11).is_none());
    assert!(buffer.try_slice(..=10).is_none());
    assert!(buffer.try_slice(..=usize::MAX).is_none());
    assert!(buffer.try_slice(usize::MAX..).is_none());
    assert!(buffer.try_slice_mut(11..).is_none());
    assert_eq!(buffer.try_slice(10..).unwrap().len(), 0);
    assert_eq!(buffer.try_slice(..).unwrap().len(), 10);
    assert!(buffer.as_view_mut().try_split_at_mut(11).is_none());
    assert!(buffer.as_view_mut().try_split_at_mut(10).is_some());
    assert!(buffer.slice(2..8).try_slice(..7).is_none());
}

#[test]
#[should_panic(expected = "not inside the buffer")]
fn a_slice_that_is_not_inside_panics_as_for_slices() {
    let _turn = together();
    let Setup {
        memory, streams, ..
    } = Setup::new(1);
    let buffer = memory.zeros::<u64>(&streams[0], 10).unwrap();
    let _ = buffer.slice(..11);
}

#[test]
fn the_traits_say_what_the_buffer_is() {
    let _turn = together();
    let Setup {
        memory, streams, ..
    } = Setup::new(1);
    let stream = &streams[0];
    let mut buffer = memory.zeros::<u64>(stream, 10).unwrap();
    let slice: &dyn DeviceSlice<u64> = &buffer;
    assert_eq!((slice.len(), slice.num_bytes()), (10, 80));
    assert_eq!((buffer.len(), buffer.num_bytes()), (10, 80));
    assert!(!buffer.is_empty());
    assert_eq!(DeviceSlice::stream(&buffer), stream);
    let (address, guard) = buffer.device_ptr(stream);
    drop(guard);
    let view = buffer.slice(3..);
    let (part, guard) = view.device_ptr(stream);
    drop(guard);
    assert_eq!(part, address + 24);
    let (same, guard) = buffer.device_ptr_mut(stream);
    drop(guard);
    assert_eq!(same, address);
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Nothing;

// SAFETY: a value without bytes has no invalid representation.
unsafe impl cudarc::driver::DeviceRepr for Nothing {}

#[test]
fn a_buffer_of_no_bytes_never_touches_the_driver() {
    alone_and_clean(|control| {
        let Setup {
            memory, streams, ..
        } = Setup::new(2);
        control.reset_calls();
        let empty = memory.upload(&streams[0], &[0u32; 0]).unwrap();
        let mut zeros = memory.zeros::<u32>(&streams[0], 0).unwrap();
        let nothings = memory.upload(&streams[0], &[Nothing; 1000]).unwrap();
        assert_eq!(nothings.len(), 1000);
        assert_eq!(empty.len(), 0);
        for stream in &streams {
            assert_eq!(empty.device_ptr(stream).0, 0);
            assert_eq!(zeros.device_ptr_mut(stream).0, 0);
            assert_eq!(nothings.device_ptr(stream).0, 0);
        }
        let raw = zeros.leak().unwrap();
        assert_eq!(raw.block, None);
        // SAFETY: the parts came from a buffer of `u32`.
        let zeros = unsafe { DeviceBuffer::<u32>::from_raw(&memory, &streams[1], raw) }.unwrap();
        drop((empty, zeros, nothings));
        assert_eq!(control.calls(None), 0, "{:?}", control.call_table());
        assert_eq!(memory.stats().allocations, 0);
    });
}

#[test]
fn a_size_that_is_no_number_is_an_error() {
    let _turn = together();
    let Setup {
        memory, streams, ..
    } = Setup::new(1);
    for len in [usize::MAX, usize::MAX / 8 + 1, isize::MAX as usize / 8 + 1] {
        let error = memory.zeros::<u64>(&streams[0], len).unwrap_err();
        let DeviceAllocError::Memory { reason, .. } = error else {
            panic!("{error:?}");
        };
        assert!(matches!(reason, AllocError::TooLarge { .. }), "{reason}");
    }
    // One value fewer is a valid size, but there is not that much memory.
    let len = isize::MAX as usize / 8;
    assert!(memory.zeros::<u64>(&streams[0], len).is_err());
    assert_eq!(memory.stats().live_bytes, 0);
}

#[test]
fn buffers_may_go_to_other_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<DeviceBuffer<f32>>();
    shared::<larder_cuda::BufferView<'_, f32>>();
    shared::<larder_cuda::BufferViewMut<'_, f32>>();
}
