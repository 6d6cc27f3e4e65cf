//! Memory that is unmapped, or mapped again, while a kernel uses it: which calls wait, whether another stream
//! continues meanwhile, and how the kernel ends.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use larder_cuda::Context;
use larder_cuda::driver::abi::{DevicePtr, MemoryHandle};
use larder_cuda::driver::{Driver, DriverError, MemoryUse};

use crate::answers::{Assumption, decide, micros, say};
use crate::kernels::Kernels;

/// The time for which the kernel runs.
const RUNS: Duration = Duration::from_millis(300);

/// The operation on the page that the kernel writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Unmap,
    UnmapSecond,
    MapSecond,
    SetAccess,
    Release,
}

impl Act {
    const fn words(self) -> &'static str {
        match self {
            Self::Unmap => "cuMemUnmap of the page that a kernel writes",
            Self::UnmapSecond => "cuMemUnmap of its other address",
            Self::MapSecond => "cuMemMap and cuMemSetAccess at another address",
            Self::SetAccess => "cuMemSetAccess of the page that a kernel writes",
            Self::Release => "cuMemRelease of its handle",
        }
    }
}

struct Page<'a> {
    driver: &'a Driver,
    device: i32,
    bytes: u64,
    start: DevicePtr,
    second: DevicePtr,
    handle: MemoryHandle,
}

impl<'a> Page<'a> {
    fn new(driver: &'a Driver, device: i32, has_second: bool) -> Result<Self, DriverError> {
        let bytes = driver.page_bytes(device, MemoryUse::default(), false)?;
        let start = driver.reserve(2 * bytes, 0)?;
        let page = Self {
            driver,
            device,
            bytes,
            start,
            second: start + bytes,
            handle: driver.create_memory(device, MemoryUse::default(), bytes)?,
        };
        // SAFETY: the addresses were reserved and the memory was created just now.
        unsafe { page.map(start) }?;
        if has_second {
            // SAFETY: the addresses were reserved and the memory was created just now.
            unsafe { page.map(page.second) }?;
        }
        Ok(page)
    }

    /// # Safety
    /// Nothing is mapped at `at`.
    unsafe fn map(&self, at: DevicePtr) -> Result<(), DriverError> {
        // SAFETY: the caller promises that nothing is mapped there; the handle has this size.
        unsafe { self.driver.map(at, self.bytes, self.handle) }?;
        // SAFETY: mapped just now, and ours.
        unsafe { self.driver.set_access(at, self.bytes, &[self.device]) }
    }

    /// # Safety
    /// The caller accepts what happens to a kernel that uses the page.
    unsafe fn act(&self, act: Act) -> Result<(), DriverError> {
        // SAFETY: the page's own addresses and handle; the caller accepts what happens to a kernel that uses
        // the page.
        unsafe {
            match act {
                Act::Unmap => self.driver.unmap(self.start, self.bytes),
                Act::UnmapSecond => self.driver.unmap(self.second, self.bytes),
                Act::MapSecond => self.map(self.second),
                Act::SetAccess => {
                    let Self { start, bytes, .. } = *self;
                    self.driver.set_access(start, bytes, &[self.device])
                }
                Act::Release => self.driver.release_memory(self.handle),
            }
        }
    }
}

/// Performs one operation on a page that a kernel writes. The context may be broken afterwards, so the process
/// ends.
pub(crate) fn probe(context: &Context, act: Act) -> Result<(), Box<dyn Error>> {
    context.with_current(|driver| tried(driver, context, act))??;
    // Exits without a cleanup, since the context may be broken.
    std::process::exit(0);
}

fn tried(driver: &Driver, context: &Context, act: Act) -> Result<(), Box<dyn Error>> {
    let kernels = Kernels::load(driver.stand_in())?;
    let (stream, other) = (
        context.cudarc().new_stream()?,
        context.cudarc().new_stream()?,
    );
    for stream in [&stream, &other] {
        // The first launch loads the kernel.
        kernels.spin(stream.cu_stream(), Duration::ZERO)?;
        stream.synchronize()?;
    }
    let page = Page::new(driver, context.ordinal(), act == Act::UnmapSecond)?;
    let beside = Beside::default();
    let (outcome, waited) = std::thread::scope(|scope| {
        scope.spawn(|| beside.run(context, &kernels, &other));
        beside.wait_for_rounds();
        // SAFETY: this process accepts what happens to the kernel.
        let launched = unsafe { kernels.touch(stream.cu_stream(), page.start, RUNS) };
        let began = Instant::now();
        // SAFETY: this process accepts what happens to the kernel, and ends afterwards.
        let outcome = unsafe { page.act(act) };
        let waited = began.elapsed();
        beside.ends.store(true, Ordering::Relaxed);
        launched.map(|()| (outcome, waited))
    })?;
    let longest = beside.longest();
    let end = match stream.synchronize() {
        Ok(()) => "the kernel ends well".to_owned(),
        Err(error) => format!("the kernel ends with {error:?}"),
    };
    let answer = match outcome {
        Ok(()) if waited > RUNS / 2 => format!("waits for the kernel; {end}"),
        Ok(()) => format!("returns at once; {end}"),
        Err(error) => format!("refused ({error}); {end}"),
    };
    let fast = outcome.is_ok() && waited <= RUNS / 2;
    let words = "mapping and unmapping do not wait for a busy device";
    decide(
        act.words(),
        answer,
        micros(waited),
        Assumption::new(words, fast),
    );
    if beside.failed.load(Ordering::Relaxed) {
        say(
            &format!("another stream during {}", act.words()),
            "undecided: its launch failed",
            "",
        );
        return Ok(());
    }
    let stalls = longest > RUNS / 4;
    let answer = format!(
        "{}; its longest launch and wait",
        if stalls { "stalls" } else { "goes on" }
    );
    let words = "mapping and unmapping do not stall other streams";
    let question = format!("another stream during {}", act.words());
    decide(
        &question,
        answer,
        micros(longest),
        Assumption::new(words, !stalls),
    );
    Ok(())
}

/// Another thread that launches kernels on its own stream and waits for them, again and again.
#[derive(Default)]
struct Beside {
    rounds: AtomicU32,
    /// Longest round after the first ones, in microseconds.
    longest_us: AtomicU32,
    ends: AtomicBool,
    /// Whether a launch was refused, for example because the context is broken.
    failed: AtomicBool,
}

impl Beside {
    fn run(&self, context: &Context, kernels: &Kernels, stream: &CudaStream) {
        let launch = || {
            let spun = kernels.spin(stream.cu_stream(), Duration::ZERO);
            spun.is_ok() && stream.synchronize().is_ok()
        };
        let all = |_: &Driver| {
            while !self.ends.load(Ordering::Relaxed) {
                let began = Instant::now();
                if !launch() {
                    self.failed.store(true, Ordering::Relaxed);
                    break;
                }
                let took = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
                if self.rounds.fetch_add(1, Ordering::Relaxed) >= 3 {
                    self.longest_us.fetch_max(took, Ordering::Relaxed);
                }
            }
            // This value ends every wait for rounds.
            self.rounds.store(u32::MAX, Ordering::Relaxed);
        };
        // If the context cannot be made current, there are no rounds to wait for.
        if context.with_current(all).is_err() {
            self.rounds.store(u32::MAX, Ordering::Relaxed);
        }
    }

    fn wait_for_rounds(&self) {
        while self.rounds.load(Ordering::Relaxed) < 5 {
            std::thread::yield_now();
        }
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(u64::from(self.longest_us.load(Ordering::Relaxed)))
    }
}
