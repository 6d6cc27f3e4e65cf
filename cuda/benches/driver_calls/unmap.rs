//! Memory that goes, or is mapped again, while a kernel uses it: which calls wait, and what becomes of the
//! kernel. Each case runs in a child, for it may break its context, or end its process.

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use larder_cuda::Context;
use larder_cuda::driver::abi::{DevicePtr, MemoryHandle};
use larder_cuda::driver::{Driver, DriverError, MemoryUse};

use crate::kernels::Kernels;
use crate::watch::Report;

/// How long the kernel runs.
const RUNS: Duration = Duration::from_millis(300);

/// What is done to the page that the kernel writes.
const CASES: [(&str, &str); 5] = [
    ("unmap", "its own address is unmapped"),
    ("release", "its handle is released"),
    ("unmap-second", "another address of it is unmapped"),
    ("map-second", "it is mapped at another address"),
    ("free", "it is freed (cuMemFree)"),
];

pub(crate) fn try_all(report: &mut Report) -> Result<(), Box<dyn Error>> {
    for (case, words) in CASES {
        let output = Command::new(std::env::current_exe()?)
            .args(["--unmap-case", case])
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let wrong = String::from_utf8_lossy(&output.stderr);
        let found = match (said.trim(), wrong.trim(), output.status.success()) {
            (said, _, true) => said.to_owned(),
            (said, wrong, false) => format!("{said} {}: {wrong}", output.status),
        };
        report.note("while a kernel writes a page", words, found.trim());
    }
    Ok(())
}

/// One case; prints what was found.
pub(crate) fn case(context: &Context, case: &str) -> Result<(), Box<dyn Error>> {
    context.with_current(|driver| tried(driver, context, case))?
}

struct Page<'a> {
    driver: &'a Driver,
    device: i32,
    bytes: u64,
}

impl Page<'_> {
    /// Does what the case is about.
    ///
    /// # Safety
    /// The page's own addresses and handle; what becomes of a kernel that uses it is what is asked.
    unsafe fn act(
        &self,
        case: &str,
        [start, second, plain]: [DevicePtr; 3],
        handle: MemoryHandle,
    ) -> Result<(), DriverError> {
        let Self {
            driver,
            device,
            bytes,
        } = *self;
        match case {
            // SAFETY: the caller's promise.
            "unmap" => unsafe { driver.unmap(start, bytes) },
            // SAFETY: the caller's promise.
            "release" => unsafe { driver.release_memory(handle) },
            // SAFETY: the caller's promise.
            "unmap-second" => unsafe { driver.unmap(second, bytes) },
            // SAFETY: the caller's promise.
            "free" => unsafe { driver.free_device(plain) },
            _ => {
                // SAFETY: the caller's promise.
                unsafe { driver.map(second, bytes, handle) }?;
                // SAFETY: mapped just now.
                unsafe { driver.set_access(second, bytes, &[device]) }
            }
        }
    }
}

fn tried(driver: &Driver, context: &Context, case: &str) -> Result<(), Box<dyn Error>> {
    if CASES.iter().all(|(known, _)| *known != case) {
        return Err(format!("no case is called {case:?}").into());
    }
    let kernels = Kernels::load(driver.stand_in())?;
    let stream = context.cudarc().new_stream()?;
    kernels.spin(stream.cu_stream(), Duration::ZERO)?;
    stream.synchronize()?;
    if let Some(control) = driver.stand_in() {
        // The kernel is queued when the call comes.
        control.schedule_deferred(1);
    }
    let device = context.ordinal();
    let bytes = driver.page_bytes(device, MemoryUse::default(), false)?;
    let start = driver.reserve(2 * bytes, 0)?;
    let handle = driver.create_memory(device, MemoryUse::default(), bytes)?;
    let second = start + bytes;
    // SAFETY: reserved and created just now.
    unsafe { driver.map(start, bytes, handle) }?;
    let mut mapped = bytes;
    if case == "unmap-second" {
        // SAFETY: reserved and created just now.
        unsafe { driver.map(second, bytes, handle) }?;
        mapped = 2 * bytes;
    }
    // SAFETY: mapped just now, and ours.
    unsafe { driver.set_access(start, mapped, &[device]) }?;
    let plain = driver.alloc_device(bytes)?;
    let at = if case == "free" { plain } else { start };
    // SAFETY: what happens to the kernel is what is asked.
    unsafe { kernels.touch(stream.cu_stream(), at, RUNS) }?;
    let began = Instant::now();
    let page = Page {
        driver,
        device,
        bytes,
    };
    // SAFETY: this process asks what happens, and ends after it.
    let answer = unsafe { page.act(case, [start, second, plain], handle) };
    let waited = if began.elapsed() > RUNS / 2 {
        "waits"
    } else {
        "returns at once"
    };
    let answer = answer.map_or_else(|error| format!("refused ({error})"), |()| waited.to_owned());
    let end = match stream.synchronize() {
        Ok(()) => "the kernel ends well".to_owned(),
        Err(error) => format!("the kernel ends with {error:?}"),
    };
    println!("{answer}; {end}");
    // What was broken is not taken down call by call.
    std::process::exit(0);
}
