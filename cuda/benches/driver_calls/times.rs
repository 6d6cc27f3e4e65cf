//! Times the calls that map and unmap pages, order streams with events, and detect captures: on an idle device,
//! while a kernel runs, and with many mappings.

use std::error::Error;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use larder_cuda::driver::abi::{DevicePtr, MemoryHandle};
use larder_cuda::driver::{Driver, MemoryUse};
use larder_cuda::{Context, DriverPool, Event, EventConfig, StreamAllocator};

use crate::answers::{Assumption, decide, median, micros, say};
use crate::kernels::Kernels;

/// Number of times that each call is timed.
const ROUNDS: usize = 20;

/// The time for which a kernel keeps the device busy in each round.
const BUSY: Duration = Duration::from_millis(8);

/// Maximum median time of a page call that counts as "microseconds", with room for a slow host.
const PAGE_CALL_MOST: Duration = Duration::from_millis(1);

/// The timed calls, in the order of their figures.
const CALLS: [&str; 9] = [
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamIsCapturing",
    "cuMemGetInfo",
];

/// How many of [`CALLS`], from the first, are page calls.
const PAGE_CALLS: usize = 5;

/// A range with many permanent mappings, and one page at its end that is mapped and unmapped.
struct Range<'a> {
    driver: &'a Driver,
    device: i32,
    page: u64,
    start: DevicePtr,
    mapped: u64,
    /// The memory behind all permanent mappings.
    common: MemoryHandle,
}

impl<'a> Range<'a> {
    /// Maps one page of `page` bytes `mapped` times in a new range.
    fn new(
        driver: &'a Driver,
        device: i32,
        page: u64,
        mapped: u64,
    ) -> Result<Self, Box<dyn Error>> {
        let start = driver.reserve((mapped + 1) * page, 0)?;
        let common = driver.create_memory(device, MemoryUse::default(), page)?;
        for number in 0..mapped {
            // SAFETY: the addresses were reserved and the memory was created just now.
            unsafe { driver.map(start + number * page, page, common) }?;
        }
        if mapped > 0 {
            // SAFETY: mapped just now, and ours.
            unsafe { driver.set_access(start, mapped * page, &[device]) }?;
        }
        Ok(Self {
            driver,
            device,
            page,
            start,
            mapped,
            common,
        })
    }

    /// Makes each page call once. Returns the times.
    fn page_calls(&self) -> Result<[Duration; PAGE_CALLS], Box<dyn Error>> {
        let (driver, page) = (self.driver, self.page);
        let at = self.start + self.mapped * page;
        let (create, handle) =
            timed(|| driver.create_memory(self.device, MemoryUse::default(), page));
        let handle = handle?;
        // SAFETY: the addresses are reserved and not mapped, and the memory was created just now.
        let (map, mapped) = timed(|| unsafe { driver.map(at, page, handle) });
        mapped?;
        // SAFETY: mapped just now, and ours.
        let (access, set) = timed(|| unsafe { driver.set_access(at, page, &[self.device]) });
        set?;
        // SAFETY: mapped just now, and nothing uses it.
        let (unmap, unmapped) = timed(|| unsafe { driver.unmap(at, page) });
        unmapped?;
        // SAFETY: created above, and no longer mapped anywhere.
        let (release, released) = timed(|| unsafe { driver.release_memory(handle) });
        released?;
        Ok([create, map, access, unmap, release])
    }

    fn give_back(self) -> Result<(), Box<dyn Error>> {
        for number in 0..self.mapped {
            let at = self.start + number * self.page;
            // SAFETY: mapped in `new`, and nothing uses it.
            unsafe { self.driver.unmap(at, self.page) }?;
        }
        // SAFETY: created in `new`, and no longer mapped anywhere.
        unsafe { self.driver.release_memory(self.common) }?;
        let bytes = (self.mapped + 1) * self.page;
        // SAFETY: reserved in `new`, and nothing is mapped there.
        unsafe { self.driver.free_reserved(self.start, bytes) }?;
        Ok(())
    }
}

pub(crate) fn timed<R>(call: impl FnOnce() -> R) -> (Duration, R) {
    let start = Instant::now();
    let answer = call();
    (start.elapsed(), answer)
}

/// Times each call with `mapped` mappings, on an idle device and while a kernel runs.
pub(crate) fn probe(context: &Context, mapped: u64) -> Result<(), Box<dyn Error>> {
    let kernels = context.with_current(|driver| Kernels::load(driver.stand_in()))??;
    let (busy_stream, stream) = (
        context.cudarc().new_stream()?,
        context.cudarc().new_stream()?,
    );
    kernels.spin(busy_stream.cu_stream(), Duration::ZERO)?;
    busy_stream.synchronize()?;
    context.with_current(|driver| -> Result<(), Box<dyn Error>> {
        let device = context.ordinal();
        let page = driver.page_bytes(device, MemoryUse::default(), false)?;
        let range = Range::new(driver, device, page, mapped)?;
        for is_busy in [false, true] {
            let mut times = [const { Vec::<Duration>::new() }; CALLS.len()];
            for _ in 0..ROUNDS {
                if is_busy {
                    kernels.spin(busy_stream.cu_stream(), BUSY)?;
                }
                let event = Event::new(context, EventConfig::default())?;
                let record = timed(|| event.record(&stream)).0;
                let query = timed(|| event.query()).0;
                let capturing = timed(|| context.capture_status(&stream)).0;
                let info = timed(|| driver.memory_info()).0;
                let pages = range.page_calls()?;
                let all = pages.into_iter().chain([record, query, capturing, info]);
                for (times, time) in times.iter_mut().zip(all) {
                    times.push(time);
                }
                busy_stream.synchronize()?;
            }
            let medians = times.map(|mut times| median(&mut times));
            report(mapped, is_busy, medians);
        }
        range.give_back()
    })?
}

fn report(mapped: u64, is_busy: bool, medians: [Duration; CALLS.len()]) {
    let device = if is_busy { "busy" } else { "idle" };
    for (number, (name, time)) in CALLS.into_iter().zip(medians).enumerate() {
        let question = format!("{name}, {mapped} mappings, device {device}");
        let answer = format!("median of {ROUNDS}");
        if number < PAGE_CALLS {
            let words = "page calls take microseconds, and no longer beside a busy device";
            let holds = time <= PAGE_CALL_MOST;
            decide(
                &question,
                answer,
                micros(time),
                Assumption::new(words, holds),
            );
        } else {
            say(&question, answer, micros(time));
        }
    }
}

/// Prints the median of each call's times.
fn say_medians<const CALLS: usize>(
    names: &[&str],
    times: [Vec<Duration>; CALLS],
    question: impl Fn(&str) -> String,
) {
    for (name, mut times) in names.iter().zip(times) {
        let answer = format!("median of {}", times.len());
        say(&question(name), answer, micros(median(&mut times)));
    }
}

/// Times page calls for handles of several sizes, and calls that cover several handles at once.
pub(crate) fn sizes(context: &Context) -> Result<(), Box<dyn Error>> {
    context.with_current(|driver| -> Result<(), Box<dyn Error>> {
        let device = context.ordinal();
        let page = driver.page_bytes(device, MemoryUse::default(), false)?;
        for pages in [1, 10, 64, 512] {
            let range = Range::new(driver, device, pages * page, 0)?;
            let mut times = [const { Vec::<Duration>::new() }; PAGE_CALLS];
            for _ in 0..ROUNDS {
                for (times, time) in times.iter_mut().zip(range.page_calls()?) {
                    times.push(time);
                }
            }
            let size = (pages * page) >> 20;
            say_medians(&CALLS, times, |name| {
                format!("{name}, a handle of {size} MiB")
            });
            range.give_back()?;
        }
        for mapped in [10, 64, 512] {
            let mut times = [const { Vec::<Duration>::new() }; 2];
            for _ in 0..ROUNDS {
                let range = Range::new(driver, device, page, mapped)?;
                let bytes = mapped * page;
                // SAFETY: mapped just now, and nothing uses it.
                let (unmap, unmapped) = timed(|| unsafe { driver.unmap(range.start, bytes) });
                unmapped?;
                for number in 0..mapped {
                    // SAFETY: reserved, and no longer mapped.
                    unsafe { driver.map(range.start + number * page, page, range.common) }?;
                }
                // SAFETY: mapped just now, and ours.
                let set = timed(|| unsafe { driver.set_access(range.start, bytes, &[device]) });
                set.1?;
                times[0].push(unmap);
                times[1].push(set.0);
                range.give_back()?;
            }
            say_medians(&["cuMemUnmap", "cuMemSetAccess"], times, |name| {
                format!("{name} of {mapped} mappings in one call")
            });
        }
        Ok(())
    })?
}

/// Times the pinning of memory that the program already has, in pages of 4 KiB and of 2 MiB.
pub(crate) fn pinning(context: &Context) -> Result<(), Box<dyn Error>> {
    const BYTES: usize = 1 << 30;
    for (advice, pages) in [
        (libc::MADV_NOHUGEPAGE, "4 KiB"),
        (libc::MADV_HUGEPAGE, "2 MiB"),
    ] {
        let (rights, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: the new mapping replaces no other.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, rights, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: mapped just now, and this is only advice.
        unsafe { libc::madvise(at, BYTES, advice) };
        // SAFETY: the mapping is ours and has this many bytes.
        let (touch, ()) = timed(|| unsafe { std::ptr::write_bytes(at.cast::<u8>(), 1, BYTES) });
        let (pin, unpin) = context.with_current(|_| -> Result<_, Box<dyn Error>> {
            // SAFETY: the mapping is ours until it is unmapped below.
            let (pin, pinned) = timed(|| unsafe { sys::cuMemHostRegister_v2(at, BYTES, 0) });
            pinned.result()?;
            // SAFETY: pinned just now, and nothing uses it.
            let (unpin, unpinned) = timed(|| unsafe { sys::cuMemHostUnregister(at) });
            unpinned.result()?;
            Ok((pin, unpin))
        })??;
        // SAFETY: mapped above, and nothing uses it.
        unsafe { libc::munmap(at, BYTES) };
        for (name, time) in [
            ("touching", touch),
            ("cuMemHostRegister of", pin),
            ("cuMemHostUnregister of", unpin),
        ] {
            say(
                &format!("{name} 1 GiB in pages of {pages}"),
                "once",
                micros(time),
            );
        }
    }
    Ok(())
}

/// Times allocations and frees that take one call each: device memory, pinned memory, and memory of the driver's
/// pool.
pub(crate) fn allocations(context: &Context) -> Result<(), Box<dyn Error>> {
    const BYTES: [(u64, &str); 2] = [(2 << 20, "2 MiB"), (1 << 30, "1 GiB")];
    let stream = context.cudarc().new_stream()?;
    let pool = DriverPool::new(context)?;
    for (bytes, size) in BYTES {
        let mut times = [const { Vec::<Duration>::new() }; 6];
        for _ in 0..ROUNDS.min(5) {
            let each = context.with_current(|driver| -> Result<_, Box<dyn Error>> {
                let (alloc, at) = timed(|| driver.alloc_device(bytes));
                let at = at?;
                // SAFETY: allocated just now, and nothing uses it.
                let (free, freed) = timed(|| unsafe { driver.free_device(at) });
                freed?;
                let (pin, host) = timed(|| driver.alloc_host(bytes, 0));
                let host = host?;
                // SAFETY: allocated just now, and nothing uses it.
                let (unpin, freed) = timed(|| unsafe { driver.free_host(host) });
                freed?;
                let (cold, block) = timed(|| pool.alloc(&stream, bytes));
                pool.free(&stream, block?)?;
                stream.synchronize()?;
                let (warm, block) = timed(|| pool.alloc(&stream, bytes));
                pool.free(&stream, block?)?;
                stream.synchronize()?;
                pool.trim(0)?;
                Ok([alloc, free, pin, unpin, cold, warm])
            })??;
            for (times, time) in times.iter_mut().zip(each) {
                times.push(time);
            }
        }
        let names = [
            "cuMemAlloc",
            "cuMemFree",
            "cuMemHostAlloc",
            "cuMemFreeHost",
            "cuMemAllocAsync, cold",
            "cuMemAllocAsync, warm",
        ];
        say_medians(&names, times, |name| format!("{name}, {size}"));
    }
    Ok(())
}
