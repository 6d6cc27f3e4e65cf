//! Reservations: addresses that never change, with memory behind the committed parts, kept by number between C
//! calls; and their export as a tensor of DLPack.
//!
//! RESERVED1 a reservation ends once, by a call or with its tensor. Its number is never used again, so a call that
//! comes too late finds nothing.
//!
//! RESERVED2 the program orders the work that uses the memory, with the streams that it passes, as it does for blocks.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::iter;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, Once};

use larder_core::sync::{AtomicU64, Ordering};
use larder_cuda::dlpack::{DataType, Device, ManagedTensor, Tensor};
use larder_cuda::{CudaStream, DriverError, ReservedBuffer};

use crate::device::{DeviceState, Handle, device, locked};
use crate::memory::pointer;
use crate::outcome::{Refusal, guard, say_once, status};

/// `kDLCUDA`: memory that a device's kernels can use.
const CUDA: i32 = 2;

/// A reservation, used by any number of threads.
struct Reservation {
    number: u64,
    device: &'static DeviceState,
    /// Stream in whose order the reservation ends.
    stream: Handle,
    address: u64,
    bytes: u64,
    state: Mutex<State>,
}

struct State {
    /// `None` once the reservation has ended.
    buffer: Option<ReservedBuffer<u8>>,
    /// Whether the reservation ends with a tensor.
    has_tensor: bool,
}

/// Reservations by number.
static RESERVATIONS: LazyLock<Mutex<HashMap<u64, Arc<Reservation>>>> =
    LazyLock::new(Mutex::default);

/// The number of the newest reservation.
static LAST_RESERVATION: AtomicU64 = AtomicU64::new(0);

/// Returns the reservation of a number.
fn reservation(number: u64) -> Result<Arc<Reservation>, Refusal> {
    let found = locked(&RESERVATIONS).get(&number).cloned();
    found.ok_or(Refusal::NoReservation)
}

impl State {
    fn buffer(&mut self) -> Result<&mut ReservedBuffer<u8>, Refusal> {
        self.buffer.as_mut().ok_or(Refusal::NoReservation)
    }
}

impl Reservation {
    /// Returns a part of the reservation as a range of bytes.
    fn range(&self, offset: u64, bytes: u64) -> Result<Range<usize>, Refusal> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes);
        // In bounds, both numbers are at most the buffer's length.
        let range = end.map(|end| offset as usize..end as usize);
        range.ok_or(Refusal::Range {
            offset,
            bytes,
            reserved_bytes: self.bytes,
        })
    }

    fn commit(&self, offset: u64, bytes: u64, handle: Handle) -> Result<(), Refusal> {
        let range = self.range(offset, bytes)?;
        let stream = self.device.stream(handle)?;
        // The lock is free during a wait for a higher limit, so that other threads can decommit.
        self.device.patiently(bytes, || {
            let mut state = locked(&self.state);
            let Some(buffer) = &mut state.buffer else {
                return Ok(Err(Refusal::NoReservation));
            };
            // SAFETY: no code reads the bytes as values: the library hands out addresses only.
            unsafe { buffer.commit(&stream, range.clone()) }.map(Ok)
        })?
    }

    fn decommit(&self, offset: u64, bytes: u64, handle: Handle) -> Result<(), Refusal> {
        let range = self.range(offset, bytes)?;
        let mut state = locked(&self.state);
        let buffer = state.buffer()?;
        let stream = self.stream_after_work(handle)?;
        let stream = stream.unwrap_or_else(|| buffer.stream().clone());
        Ok(buffer.decommit(&stream, range)?)
    }

    /// Returns the stream of a handle (RESERVED2); `None` if the host has waited for its work instead.
    fn stream_after_work(&self, handle: Handle) -> Result<Option<Arc<CudaStream>>, DriverError> {
        let mut streams = self.device.streams_still_used(iter::once(handle))?;
        Ok(streams.pop())
    }

    /// Frees memory and addresses in the order of the reservation's stream (RESERVED1, RESERVED2).
    ///
    /// # Errors
    /// If the stream is being captured, or the driver refuses. Nothing has changed then.
    fn end(&self, state: &mut State) -> Result<(), Refusal> {
        let buffer = state.buffer()?;
        self.stream_after_work(self.stream)?;
        let stream = buffer.stream().clone();
        // Decommits nothing, but is refused where a decommit would be, and orders the stream after all uses.
        buffer.decommit(&stream, 0..0)?;
        state.buffer = None;
        locked(&RESERVATIONS).remove(&self.number);
        Ok(())
    }
}

/// Reserves addresses. Returns the reservation and the size of its units.
fn reserve(ordinal: c_int, handle: Handle, bytes: u64) -> Result<(Arc<Reservation>, u64), Refusal> {
    let device = device(ordinal)?;
    let len = usize::try_from(bytes).map_err(|_| Refusal::Size(bytes as i64))?;
    let buffer = device.memory.reserve(&device.stream(handle)?, len)?;
    let unit_bytes = buffer.unit_bytes();
    let reservation = Arc::new(Reservation {
        // Relaxed: the number only has to be unique.
        number: LAST_RESERVATION.fetch_add(1, Ordering::Relaxed) + 1,
        device,
        stream: handle,
        address: buffer.address(),
        bytes,
        state: Mutex::new(State {
            buffer: Some(buffer),
            has_tensor: false,
        }),
    });
    locked(&RESERVATIONS).insert(reservation.number, reservation.clone());
    Ok((reservation, unit_bytes))
}

/// A tensor of DLPack over all bytes of a reservation, in one box that its deleter frees.
///
/// RESERVED3 the tensor is the first field, so it has the address of the box, and only its deleter frees the box.
#[repr(C)]
struct Exported {
    managed: ManagedTensor,
    shape: [i64; 1],
    number: u64,
}

/// Ends the reservation of a tensor. A refusal keeps the reservation, and is reported on stderr.
///
/// # Safety
/// The tensor is null or an export of this library, and nothing uses it any more.
unsafe extern "C" fn delete(managed: *mut ManagedTensor) {
    static SAID: Once = Once::new();
    if managed.is_null() {
        return;
    }
    // SAFETY: RESERVED3: the tensor is the start of its box, and the caller passes it once.
    let exported = unsafe { Box::from_raw(managed.cast::<Exported>()) };
    let ended = guard(|| {
        let reservation = reservation(exported.number)?;
        let mut state = locked(&reservation.state);
        let ended = reservation.end(&mut state);
        ended.map_err(|refused| Refusal::Deleter(Box::new(refused)))
    });
    if let Err(refused) = ended {
        say_once(&SAID, &refused);
    }
}

/// Reserves addresses without memory. Returns the reservation's number, or 0 for a refusal.
///
/// # Safety
/// `first` and `unit_bytes` are null, or have space for a value.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn larder_cuda_reserve(
    ordinal: c_int,
    stream: Handle,
    bytes: u64,
    first: *mut *mut c_void,
    unit_bytes: *mut u64,
) -> u64 {
    let reserved = guard(|| {
        if first.is_null() || unit_bytes.is_null() {
            return Err(Refusal::Null("the first address or the size of a unit"));
        }
        reserve(ordinal, stream, bytes)
    });
    let Ok((reservation, unit)) = reserved else {
        return 0;
    };
    // SAFETY: neither pointer is null, so both have space for a value, as the header demands.
    unsafe {
        first.write(pointer(reservation.address));
        unit_bytes.write(unit);
    }
    reservation.number
}

/// Commits a part of a reservation.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_commit(number: u64, offset: u64, bytes: u64, stream: Handle) -> c_int {
    status(|| reservation(number)?.commit(offset, bytes, stream))
}

/// Undoes a commit of a part of a reservation.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_decommit(number: u64, offset: u64, bytes: u64, stream: Handle) -> c_int {
    status(|| reservation(number)?.decommit(offset, bytes, stream))
}

/// Ends a reservation.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_unreserve(number: u64) -> c_int {
    status(|| {
        let reservation = reservation(number)?;
        let mut state = locked(&reservation.state);
        if state.has_tensor {
            return Err(Refusal::HasTensor);
        }
        reservation.end(&mut state)
    })
}

/// Exports all bytes of a reservation as a tensor of DLPack, with which the reservation ends. Returns null for a
/// refusal.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_reservation_tensor(number: u64) -> *mut ManagedTensor {
    let exported = guard(|| {
        let reservation = reservation(number)?;
        let mut state = locked(&reservation.state);
        state.buffer()?;
        if state.has_tensor {
            return Err(Refusal::HasTensor);
        }
        state.has_tensor = true;
        let tensor = Tensor {
            data: pointer(reservation.address),
            device: Device {
                device_type: CUDA,
                device_id: reservation.device.ordinal,
            },
            ndim: 1,
            dtype: DataType::U8,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let exported = Box::into_raw(Box::new(Exported {
            managed: ManagedTensor {
                dl_tensor: tensor,
                manager_ctx: ptr::null_mut(),
                deleter: Some(delete),
            },
            // The bytes lie in an address space, so they are fewer than an `i64` holds.
            shape: [reservation.bytes as i64],
            number,
        }));
        // SAFETY: RESERVED3: the box is valid until the deleter is called, and no other code has its address yet.
        unsafe { (*exported).managed.dl_tensor.shape = (&raw mut (*exported).shape).cast() };
        Ok(exported.cast())
    });
    exported.unwrap_or(ptr::null_mut())
}
