//! One physical page at two addresses: what a kernel writes by one, the next reads by the other.
//!
//! Pages that move stay mapped where they were, so Larder rests on this from kernel to kernel. Launches that
//! begin early read before the kernel ahead has ended: they may be wrong with one address too, which is why
//! each case is tried with both.

use std::error::Error;

use cudarc::driver::CudaStream;
use larder_cuda::driver::abi::{DevicePtr, MemoryHandle, StreamHandle, constants};
use larder_cuda::driver::{Driver, MemoryUse};
use larder_cuda::{Context, Event, EventConfig};

use crate::kernels::{Dependent, Kernels};
use crate::watch::Report;

/// How often each case writes.
const ROUNDS: u32 = 300;

/// A page of the device at two addresses, and a word for each sum.
struct Pages<'a> {
    driver: &'a Driver,
    addresses: [DevicePtr; 2],
    words: u32,
    sums: DevicePtr,
    handle: MemoryHandle,
    bytes: u64,
}

impl<'a> Pages<'a> {
    fn new(driver: &'a Driver, device: i32) -> Result<Self, Box<dyn Error>> {
        let bytes = driver.page_bytes(device, MemoryUse::default(), false)?;
        let start = driver.reserve(2 * bytes, 0)?;
        let handle = driver.create_memory(device, MemoryUse::default(), bytes)?;
        for at in [start, start + bytes] {
            // SAFETY: reserved and created just now.
            unsafe { driver.map(at, bytes, handle) }?;
        }
        // SAFETY: mapped just now, and ours.
        unsafe { driver.set_access(start, 2 * bytes, &[device]) }?;
        Ok(Self {
            driver,
            addresses: [start, start + bytes],
            words: u32::try_from(bytes / 4)?,
            sums: driver.alloc_device(4 * u64::from(2 * ROUNDS))?,
            handle,
            bytes,
        })
    }

    /// Sets all words and sums to 0.
    fn clear(&self, stream: &CudaStream) -> Result<(), Box<dyn Error>> {
        let (words, sums) = (self.words, 2 * ROUNDS);
        for (at, count) in [(self.addresses[0], words), (self.sums, sums)] {
            // SAFETY: ours, and nothing is queued on it.
            unsafe {
                self.driver
                    .fill_words(at, 0, u64::from(count), handle_of(stream))
            }?;
        }
        stream.synchronize()?;
        Ok(())
    }

    fn sum_at(&self, number: u32) -> DevicePtr {
        self.sums + 4 * u64::from(number)
    }

    /// How many sums are not what so many additions to each word give.
    fn stale(&self, stream: &CudaStream) -> Result<usize, Box<dyn Error>> {
        let mut sums = vec![0_u32; 2 * ROUNDS as usize];
        let (to, bytes) = (sums.as_mut_ptr().cast(), 4 * sums.len() as u64);
        // SAFETY: ours; the copy is over before the sums are read.
        unsafe {
            self.driver
                .copy_to_host(to, self.sums, bytes, handle_of(stream))
        }?;
        stream.synchronize()?;
        let right = |number: u32| self.words.wrapping_mul(number + 1);
        let wrong = sums
            .iter()
            .zip(0..)
            .filter(|(sum, number)| **sum != right(*number));
        Ok(wrong.count())
    }

    fn give_back(self) -> Result<(), Box<dyn Error>> {
        for at in self.addresses {
            // SAFETY: mapped in `new`, and all work on it has ended.
            unsafe { self.driver.unmap(at, self.bytes) }?;
        }
        // SAFETY: created in `new`, mapped nowhere any more.
        unsafe { self.driver.release_memory(self.handle) }?;
        // SAFETY: reserved in `new`, nothing is mapped there.
        unsafe { self.driver.free_reserved(self.addresses[0], 2 * self.bytes) }?;
        // SAFETY: given in `new`, and all work on it has ended.
        unsafe { self.driver.free_device(self.sums) }?;
        Ok(())
    }
}

fn handle_of(stream: &CudaStream) -> StreamHandle {
    StreamHandle(stream.cu_stream().expose_provenance())
}

pub(crate) fn try_all(report: &mut Report, context: &Context) -> Result<(), Box<dyn Error>> {
    let (first, second) = (
        context.cudarc().new_stream()?,
        context.cudarc().new_stream()?,
    );
    let stale = context.with_current(|driver| -> Result<usize, Box<dyn Error>> {
        let kernels = Kernels::load(driver.stand_in())?;
        let pages = Pages::new(driver, context.ordinal())?;
        let case = Case {
            pages: &pages,
            kernels: &kernels,
        };
        let mut stale = 0;
        let same = [pages.addresses[0]; 2];
        for (addresses, words) in [(pages.addresses, "two addresses"), (same, "one address")] {
            let plain = case.plain(&first, addresses)?;
            note(report, "kernel after kernel", words, plain);
            let streams = case.streams(context, &first, &second, addresses)?;
            note(report, "kernel, event, other stream", words, streams);
            stale += plain + streams;
            let capability = constants::DEVICE_COMPUTE_CAPABILITY_MAJOR;
            if driver.stand_in().is_some()
                || driver.device_attribute(context.device(), capability)? < 9
            {
                let why = "skipped: needs a device of capability 9.0";
                report.note("dependent launch", words, why);
                continue;
            }
            let dependent = kernels.dependent()?;
            let waiting = case.dependent(&dependent, &first, addresses, true)?;
            note(report, "dependent launch that waits", words, waiting);
            let early = case.dependent(&dependent, &first, addresses, false)?;
            note(report, "dependent launch that does not", words, early);
            stale += waiting;
        }
        pages.give_back()?;
        Ok(stale)
    })??;
    if stale > 0 {
        return Err(format!("{stale} sums were stale where no launch begins early").into());
    }
    Ok(())
}

fn note(report: &mut Report, call: &str, case: &str, stale: usize) {
    let of = 2 * ROUNDS;
    report.note(call, case, &format!("{stale} of {of} sums are stale"));
}

struct Case<'a> {
    pages: &'a Pages<'a>,
    kernels: &'a Kernels,
}

impl Case<'_> {
    /// Writes by one address, sums by the other, and the other way round, on one stream.
    fn plain(
        &self,
        stream: &CudaStream,
        addresses: [DevicePtr; 2],
    ) -> Result<usize, Box<dyn Error>> {
        let (pages, raw) = (self.pages, stream.cu_stream());
        pages.clear(stream)?;
        for number in 0..2 * ROUNDS {
            let [write, read] = turned(addresses, number);
            // SAFETY: the page is ours, whole.
            unsafe { self.kernels.add(raw, write, pages.words) }?;
            // SAFETY: the page is ours, whole, and so is the word.
            unsafe {
                self.kernels
                    .sum(raw, read, pages.words, pages.sum_at(number))
            }?;
        }
        pages.stale(stream)
    }

    /// The sums are made on another stream, which waits for an event.
    fn streams(
        &self,
        context: &Context,
        first: &CudaStream,
        second: &CudaStream,
        addresses: [DevicePtr; 2],
    ) -> Result<usize, Box<dyn Error>> {
        let pages = self.pages;
        pages.clear(first)?;
        let (written, read_all) = (
            Event::new(context, EventConfig::default())?,
            Event::new(context, EventConfig::default())?,
        );
        for number in 0..2 * ROUNDS {
            let [write, read] = turned(addresses, number);
            // SAFETY: the page is ours, whole.
            unsafe { self.kernels.add(first.cu_stream(), write, pages.words) }?;
            written.record(first)?;
            written.wait_on(second)?;
            let to = pages.sum_at(number);
            // SAFETY: the page is ours, whole, and so is the word.
            unsafe { self.kernels.sum(second.cu_stream(), read, pages.words, to) }?;
            read_all.record(second)?;
            read_all.wait_on(first)?;
        }
        pages.stale(first)
    }

    /// The sum may begin before the addition has ended, and waits for it or not.
    fn dependent(
        &self,
        kernels: &Dependent,
        stream: &CudaStream,
        addresses: [DevicePtr; 2],
        waits: bool,
    ) -> Result<usize, Box<dyn Error>> {
        let (pages, raw) = (self.pages, stream.cu_stream());
        pages.clear(stream)?;
        for number in 0..2 * ROUNDS {
            let [write, read] = turned(addresses, number);
            // SAFETY: the page is ours, whole.
            unsafe { kernels.add_early(raw, write, pages.words) }?;
            let to = pages.sum_at(number);
            // SAFETY: the page is ours, whole, and so is the word.
            unsafe { kernels.sum(raw, read, pages.words, to, waits) }?;
        }
        pages.stale(stream)
    }
}

fn turned([first, second]: [DevicePtr; 2], number: u32) -> [DevicePtr; 2] {
    if number.is_multiple_of(2) {
        [first, second]
    } else {
        [second, first]
    }
}
