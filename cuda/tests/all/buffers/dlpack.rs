//! Tensors exchanged with other libraries through DLPack.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::DevicePtr;
use larder_cuda::dlpack::{
    DataType, Device, ImportedBuffer, Layout, ManagedTensor, ManagedTensorVersioned, PackError,
    Tensor, Version,
};
use larder_cuda::driver::Rule;

use super::{SEEDS, Setup};
use crate::common::{alone, alone_and_clean, together, under_all_schedules};

const MATRIX: Layout<'_> = Layout {
    dtype: DataType::U32,
    shape: &[20, 15],
    strides: &[15, 1],
};

#[test]
fn the_structs_are_those_of_c() {
    assert_eq!((size_of::<Tensor>(), align_of::<Tensor>()), (48, 8));
    assert_eq!(core::mem::offset_of!(Tensor, dtype), 20);
    assert_eq!(core::mem::offset_of!(Tensor, byte_offset), 40);
    assert_eq!(core::mem::offset_of!(ManagedTensorVersioned, deleter), 16);
    assert_eq!(core::mem::offset_of!(ManagedTensorVersioned, dl_tensor), 32);
    assert_eq!(size_of::<ManagedTensorVersioned>(), 80);
    assert_eq!(core::mem::offset_of!(ManagedTensor, deleter), 56);
    assert_eq!(size_of::<ManagedTensor>(), 64);
}

#[test]
fn a_tensor_goes_out_and_comes_back_in_the_order_of_streams() {
    alone_and_clean(|control| {
        let setup = Setup::new(3);
        let [a, b, c] = [0, 1, 2].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        let ones = memory.upload(a, &[1u32; 300]).unwrap();
        under_all_schedules(control, SEEDS, || {
            let mut buffer = memory.zeros::<u32>(a, 300).unwrap();
            c.memcpy_dtod(&ones, &mut buffer).unwrap();
            let tensor = buffer.into_dlpack(b, MATRIX).unwrap();
            // SAFETY: the tensor of `u32` was just exported for work on `b`.
            let mut values =
                unsafe { ImportedBuffer::<u32>::from_dlpack(memory, b, tensor) }.unwrap();
            assert_eq!(values.layout(), MATRIX);
            let mut seen = memory.zeros::<u32>(c, 300).unwrap();
            c.memcpy_dtod(&values.as_view(), &mut seen).unwrap();
            let mut row = values.as_view_mut().unwrap();
            b.memset_zeros(&mut row.slice_mut(15..30)).unwrap();
            assert_eq!(
                values.as_view().slice(10..20).to_vec().unwrap(),
                [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
            );
            drop(values);
            assert_eq!(c.clone_dtoh(&seen).unwrap(), [1; 300]);
            // The unversioned struct: its consumer calls the deleter while work is still queued on the stream that it
            // named.
            let tensor = seen.into_dlpack_unversioned(b, MATRIX).unwrap();
            // SAFETY: the tensor was just exported, and its deleter has not run.
            let given = unsafe { tensor.as_ref() };
            let (at, deleter) = (given.dl_tensor.data.addr() as u64, given.deleter);
            crate::common::fill(b, at, 1200, 7);
            // SAFETY: the consumer queues no more work on the tensor.
            unsafe { deleter.unwrap()(tensor.as_ptr()) };
            let mut next = memory.zeros::<u32>(c, 300).unwrap();
            a.memset_zeros(&mut next).unwrap();
            assert_eq!(next.to_vec().unwrap(), [0; 300]);
        });
        drop(ones);
        setup.context.synchronize().unwrap();
        memory.release(u64::MAX);
        assert_eq!(memory.stats().live_bytes, 0);
    });
}

static DELETED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn count(_: *mut ManagedTensorVersioned) {
    DELETED.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn never(_: *mut ManagedTensorVersioned) {
    panic!("a refused tensor is the caller's");
}

/// Makes a tensor invalid.
type Spoil = fn(&mut ManagedTensorVersioned);

/// Returns a foreign tensor with the data pointer `at` and a byte offset of 8.
fn foreign(at: u64, shape: &mut [i64], strides: *mut i64) -> ManagedTensorVersioned {
    ManagedTensorVersioned {
        version: Version { major: 1, minor: 9 },
        manager_ctx: std::ptr::null_mut(),
        deleter: Some(count),
        flags: 1,
        dl_tensor: Tensor {
            data: std::ptr::without_provenance_mut::<c_void>(at as usize),
            device: Device {
                device_type: 2,
                device_id: 0,
            },
            ndim: shape.len() as i32,
            dtype: DataType::U32,
            shape: shape.as_mut_ptr(),
            strides,
            byte_offset: 8,
        },
    }
}

#[test]
fn a_foreign_tensor_is_ended_once_its_streams_are_waited_for() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let numbers: Vec<u32> = (0..100).collect();
        let whose = memory.upload(stream, &numbers).unwrap();
        let at = whose.device_ptr(stream).0;
        let mut shape = [3, 4];
        let take = |tensor: &mut ManagedTensorVersioned| {
            // SAFETY: the tensor has `u32` values, which `whose` keeps alive; an invalid tensor is refused.
            unsafe { ImportedBuffer::<u32>::from_dlpack(memory, stream, NonNull::from(tensor)) }
        };
        // Without strides, the layout is row-major.
        let mut tensor = foreign(at, &mut shape, std::ptr::null_mut());
        let mut values = take(&mut tensor).unwrap();
        assert_eq!(values.layout().strides, [4, 1]);
        assert_eq!(values.as_view().to_vec().unwrap(), numbers[2..14]);
        assert!(values.as_view_mut().is_none(), "it is read-only");
        assert_eq!(DELETED.load(Ordering::Relaxed), 0);
        drop(values);
        assert_eq!(DELETED.load(Ordering::Relaxed), 1);
        // With gaps, the view reaches from the first element to the last.
        let mut strides = [10, 2];
        let mut tensor = foreign(at, &mut shape, strides.as_mut_ptr());
        let values = take(&mut tensor).unwrap();
        assert_eq!(values.as_view().len(), 2 * 10 + 3 * 2 + 1);
        // If the wait is refused, the deleter is not called.
        control.fail(Rule::of("cuStreamSynchronize")).unwrap();
        drop(values);
        control.clear_failures();
        assert_eq!(DELETED.load(Ordering::Relaxed), 1);
        let mut none = [3, 0];
        let mut tensor = foreign(0, &mut none, std::ptr::null_mut());
        assert!(take(&mut tensor).unwrap().as_view().is_empty());
    });
}

#[test]
fn a_foreign_tensor_of_another_kind_stays_its_producers() {
    let _turn = together();
    let setup = Setup::new(1);
    let (memory, stream) = (&setup.memory, &setup.streams[0]);
    let whose = memory.zeros::<u32>(stream, 100).unwrap();
    let at = whose.device_ptr(stream).0;
    let take = |tensor: &mut ManagedTensorVersioned| {
        // SAFETY: the tensor has `u32` values, which `whose` keeps alive; an invalid tensor is refused.
        let taken =
            unsafe { ImportedBuffer::<u32>::from_dlpack(memory, stream, NonNull::from(tensor)) };
        taken.unwrap_err()
    };
    let wrong: [(&str, Spoil); 6] = [
        ("Version", |tensor| tensor.version.major = 2),
        ("Device", |tensor| tensor.dl_tensor.device.device_type = 1),
        ("Device", |tensor| tensor.dl_tensor.device.device_id = 1),
        ("Type", |tensor| tensor.dl_tensor.dtype = DataType::F64),
        ("Type", |tensor| tensor.dl_tensor.byte_offset = 2),
        ("Shape", |tensor| tensor.dl_tensor.ndim = -1),
    ];
    let mut shape = [3, 4];
    for (what, spoil) in wrong {
        let mut tensor = foreign(at, &mut shape, std::ptr::null_mut());
        tensor.deleter = Some(never);
        spoil(&mut tensor);
        let error = take(&mut tensor);
        assert!(format!("{error:?}").starts_with(what), "{error:?}");
    }
    for (mut shape, mut strides) in [
        ([-1, 4], [4, 1]),
        ([3, 4], [-4, 1]),
        ([i64::MAX, 4], [4, 1]),
    ] {
        let mut tensor = foreign(at, &mut shape, strides.as_mut_ptr());
        tensor.deleter = Some(never);
        assert_eq!(take(&mut tensor), PackError::Shape);
    }
}

#[test]
fn a_layout_that_the_buffer_does_not_have_gives_it_back() {
    let Some((_control, _turn)) = alone() else {
        return;
    };
    let setup = Setup::new(1);
    let stream = &setup.streams[0];
    let mut buffer = setup.memory.zeros::<u32>(stream, 300).unwrap();
    let wrong = [
        Layout {
            shape: &[20, 16],
            ..MATRIX
        },
        Layout {
            strides: &[1],
            ..MATRIX
        },
        Layout {
            strides: &[-15, 1],
            ..MATRIX
        },
        Layout {
            strides: &[i64::MAX, 1],
            ..MATRIX
        },
        Layout {
            dtype: DataType::F16,
            ..MATRIX
        },
    ];
    for layout in wrong {
        let refused = buffer.into_dlpack(stream, layout).unwrap_err();
        let is_typed = matches!(refused.error, PackError::Shape | PackError::Type { .. });
        assert!(is_typed, "{:?}", refused.error);
        buffer = refused.value;
    }
    // A stream of another context.
    let elsewhere = larder_cuda::Context::new(1).unwrap();
    let stranger = elsewhere.cudarc().new_stream().unwrap();
    let refused = buffer.into_dlpack(&stranger, MATRIX).unwrap_err();
    assert!(
        matches!(refused.error, PackError::Order(_)),
        "{:?}",
        refused.error
    );
    drop(refused);
    assert_eq!(setup.memory.stats().live_bytes, 0);
}
