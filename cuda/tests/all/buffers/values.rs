//! Buffers split into parts and read as other types; values that are copied, read back, or not written yet.

use cudarc::driver::{LaunchConfig, PushKernelArg};
use larder_cuda::driver::Rule;
use larder_cuda::{BufferView, DeviceBuffer, Launch};

use super::{SEEDS, Setup};
use crate::common::kernels::add_kernel;
use crate::common::{alone_and_clean, together, under_all_schedules};

#[test]
fn parts_are_cut_as_those_of_slices() {
    let _turn = together();
    let setup = Setup::new(1);
    let stream = &setup.streams[0];
    let host: Vec<u32> = (0..10).collect();
    let mut buffer = setup.memory.upload(stream, &host).unwrap();
    let (low, high) = buffer.split_at(3);
    assert_eq!(low.to_vec().unwrap(), host[..3]);
    assert_eq!(high.to_vec().unwrap(), host[3..]);
    let view = buffer.as_view();
    assert!(view.try_split_at(11).is_none());
    let (_, none) = view.try_split_at(10).unwrap();
    assert_eq!(none.to_vec().unwrap(), host[10..]);
    for chunk_len in [1, 3, 5, 10, 11] {
        let chunks: Vec<_> = buffer.chunks_exact(chunk_len).collect();
        let chunks: Vec<_> = chunks.iter().map(|part| part.to_vec().unwrap()).collect();
        let expected: Vec<_> = host.chunks_exact(chunk_len).collect();
        assert_eq!(chunks, expected);
    }
    for chunk in buffer.chunks_exact_mut(4).skip(1) {
        let mut chunk = chunk;
        stream.memset_zeros(&mut chunk).unwrap();
    }
    assert_eq!(buffer.to_vec().unwrap(), [0, 1, 2, 3, 0, 0, 0, 0, 8, 9]);
    let values: Vec<u32> = buffer.try_into().unwrap();
    assert_eq!(values.len(), 10);
    assert_eq!(setup.memory.stats().live_bytes, 0);
}

#[test]
#[should_panic(expected = "not inside")]
fn chunks_of_nothing_panic_as_for_slices() {
    let _turn = together();
    let setup = Setup::new(1);
    let buffer = setup.memory.zeros::<u32>(&setup.streams[0], 10).unwrap();
    let _ = buffer.chunks_exact(0).count();
}

#[test]
fn bytes_are_read_as_whole_aligned_values_of_another_type() {
    let _turn = together();
    let setup = Setup::new(1);
    let stream = &setup.streams[0];
    let mut buffer = setup.memory.upload(stream, &[0x0201_u16; 10]).unwrap();
    // SAFETY: any bytes are valid integers.
    let bytes: BufferView<'_, u8> = unsafe { buffer.as_view().transmute() }.unwrap();
    assert_eq!(bytes.to_vec().unwrap(), [1, 2].repeat(10));
    // SAFETY: any bytes are valid integers.
    let quads: BufferView<'_, u32> = unsafe { buffer.as_view().transmute() }.unwrap();
    assert_eq!(quads.to_vec().unwrap(), [0x0201_0201; 5]);
    // SAFETY: refused, because 20 bytes are not a whole number of `u64` values.
    assert!(unsafe { buffer.as_view().transmute::<u64>() }.is_none());
    // SAFETY: refused, because the part begins at offset 2, which is not aligned for `u32`.
    assert!(unsafe { buffer.slice(1..3).transmute::<u32>() }.is_none());
    // SAFETY: refused, because zero-sized values cannot be counted.
    assert!(unsafe { buffer.as_view().transmute::<[u8; 0]>() }.is_none());
    {
        // SAFETY: any bytes are valid integers of either type.
        let quads = unsafe { buffer.slice_mut(2..6).transmute_mut::<u32>() };
        stream.memset_zeros(&mut quads.unwrap()).unwrap();
    }
    let mut expected = [0x0201; 10];
    expected[2..6].fill(0);
    assert_eq!(buffer.to_vec().unwrap(), expected);
}

#[test]
fn clones_and_vectors_come_after_what_other_streams_wrote() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let add = add_kernel(control, &setup.context);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let count = 300_u32;
        under_all_schedules(control, SEEDS, || {
            let ones = setup.memory.upload(a, &[1u32; 300]).unwrap();
            let mut sum = setup.memory.zeros::<u32>(a, 300).unwrap();
            let mut launch = Launch::on(b, &add);
            launch.arg(&mut sum).arg(&ones).arg(&count);
            // SAFETY: the kernel takes two pointers and a length, which fit.
            unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }.unwrap();
            let clone = sum.try_clone().unwrap();
            b.memset_zeros(&mut sum).unwrap();
            assert_eq!(clone.to_vec().unwrap(), [1; 300]);
            assert_eq!(Vec::try_from(sum).unwrap(), [0; 300]);
            assert_eq!(
                ones.slice(10..20).try_clone().unwrap().to_vec().unwrap(),
                [1; 10]
            );
            // Memory that a copy fills before it becomes a buffer of numbers.
            let mut room = setup.memory.uninit::<u32>(a, 300).unwrap();
            {
                // SAFETY: the memory is only written.
                let numbers = unsafe { room.as_view_mut().transmute_mut::<u32>() };
                b.memcpy_dtod(&clone, &mut numbers.unwrap()).unwrap();
            }
            // SAFETY: the copy writes all of the memory.
            let room: DeviceBuffer<u32> = unsafe { room.assume_init() };
            assert_eq!(room.to_vec().unwrap(), [1; 300]);
        });
        setup.context.synchronize().unwrap();
        setup.memory.release(u64::MAX);
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

#[test]
fn a_refused_copy_is_an_error_and_loses_nothing() {
    alone_and_clean(|control| {
        // In the eager schedule the finding below is reported at once, so that it can be cleared.
        control.schedule_eagerly();
        let setup = Setup::new(2);
        let mut buffer = setup.memory.zeros::<u32>(&setup.streams[0], 100).unwrap();
        let live_bytes = setup.memory.stats().live_bytes;
        let refuse = |function| {
            control.fail(Rule::of(function).times(9)).unwrap();
        };
        refuse("cuMemcpyDtoHAsync_v2");
        assert!(buffer.to_vec().is_err());
        refuse("cuMemcpyDtoDAsync_v2");
        assert!(buffer.try_clone().is_err());
        control.clear_failures();
        assert_eq!(setup.memory.stats().live_bytes, live_bytes);
        // Neither the device nor the host can wait for the stream that writes, so the values cannot be read.
        setup.streams[1].memset_zeros(&mut buffer).unwrap();
        for function in [
            "cuStreamWaitEvent",
            "cuStreamSynchronize",
            "cuEventSynchronize",
        ] {
            refuse(function);
        }
        assert!(buffer.to_vec().is_err());
        control.clear_failures();
        control.clear_findings();
        assert_eq!(setup.context.cudarc().check_err(), Ok(()));
    });
}
