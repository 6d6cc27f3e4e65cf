//! One physical memory at two addresses: what work writes by one, the next work reads by the other.
//!
//! Pages that move stay mapped where they were, so Larder rests on this from operation to operation. A launch that
//! reads before the kernel ahead has ended may be wrong with one address too, so it decides nothing.

use std::error::Error;

use cudarc::driver::{CudaStream, result, sys};
use larder_cuda::driver::abi::{DevicePtr, MemoryHandle, StreamHandle, constants};
use larder_cuda::driver::{Driver, MemoryUse};
use larder_cuda::{Context, Event, EventConfig};

use crate::answers::{Assumption, decide, say};
use crate::kernels::Kernels;

/// How the memory is written and read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A kernel writes, the next kernel reads.
    Kernel,
    /// The next kernel reads by the cache for what no kernel writes.
    ReadOnly,
    /// A fill writes, a kernel reads.
    Fill,
    /// The copy engine writes, a kernel reads.
    CopyIn,
    /// A kernel writes, the copy engine reads.
    CopyOut,
    /// Kernels of one graph.
    Graph,
    /// Kernels of two streams, with an event between them.
    Streams,
    /// A launch that may begin before the kernel ahead has ended, and waits for it before it reads.
    Waiting,
    /// A launch that may begin before the kernel ahead has ended, and does not wait.
    Early,
}

/// Answers for one page, and for more memory than a device's cache has, of several handles.
pub(crate) fn probe(context: &Context, way: Way) -> Result<(), Box<dyn Error>> {
    let is_real = context.driver().stand_in().is_none();
    let page = context.try_current(|driver| driver.page_bytes(0, MemoryUse::default(), false))?;
    let large = if is_real { 64 << 20 } else { page };
    for (handle_bytes, count, rounds, size) in [
        (page, 1, 300, "one page"),
        (large, 8, 20, "8 handles, 512 MiB on a GPU"),
    ] {
        let stale = context.with_current(|driver| -> Result<_, Box<dyn Error>> {
            let memory = Aliased::new(driver, context.ordinal(), handle_bytes, count, rounds)?;
            let kernels = Kernels::load(driver.stand_in())?;
            let case = Case {
                context,
                memory: &memory,
                kernels: &kernels,
                stream: context.cudarc().new_stream()?,
            };
            let stale = case.stale(way)?;
            drop(case);
            memory.give_back()?;
            Ok(stale)
        })??;
        let name = format!("{}: {size}", words_of(way));
        let Some(stale) = stale else {
            say(&name, "skipped: needs a GPU, of capability 9.0", 0);
            continue;
        };
        let answer = format!("stale in {stale} of {rounds} rounds");
        if way == Way::Early {
            say(&name, answer, stale);
        } else {
            let one = Assumption::new("two mappings of one handle are one memory", stale == 0);
            decide(&name, answer, stale, one);
        }
    }
    Ok(())
}

const fn words_of(way: Way) -> &'static str {
    match way {
        Way::Kernel => "two addresses, kernel then kernel",
        Way::ReadOnly => "two addresses, kernel then ld.global.nc",
        Way::Fill => "two addresses, fill then kernel",
        Way::CopyIn => "two addresses, copy engine then kernel",
        Way::CopyOut => "two addresses, kernel then copy engine",
        Way::Graph => "two addresses, kernels of a graph",
        Way::Streams => "two addresses, kernels of two streams and an event",
        Way::Waiting => "two addresses, a dependent launch that waits",
        Way::Early => "two addresses, a dependent launch that does not wait",
    }
}

/// Memory of several handles at two addresses, and a word of plain memory for each round.
struct Aliased<'a> {
    driver: &'a Driver,
    handles: Vec<MemoryHandle>,
    handle_bytes: u64,
    addresses: [DevicePtr; 2],
    bytes: u64,
    words: u32,
    rounds: u32,
    sums: DevicePtr,
}

impl<'a> Aliased<'a> {
    fn new(
        driver: &'a Driver,
        device: i32,
        handle_bytes: u64,
        count: u64,
        rounds: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let bytes = handle_bytes * count;
        let start = driver.reserve(2 * bytes, 0)?;
        let mut handles = Vec::new();
        for number in 0..count {
            let handle = driver.create_memory(device, MemoryUse::default(), handle_bytes)?;
            handles.push(handle);
            for from in [start, start + bytes] {
                // SAFETY: reserved and created just now.
                unsafe { driver.map(from + number * handle_bytes, handle_bytes, handle) }?;
            }
        }
        // SAFETY: mapped just now, and ours.
        unsafe { driver.set_access(start, 2 * bytes, &[device]) }?;
        Ok(Self {
            driver,
            handles,
            handle_bytes,
            addresses: [start, start + bytes],
            bytes,
            words: u32::try_from(bytes / 4)?,
            rounds,
            sums: driver.alloc_device(4 * u64::from(rounds))?,
        })
    }

    /// Writes by one address and reads by the other, which take turns.
    const fn turned(&self, round: u32) -> [DevicePtr; 2] {
        let [first, second] = self.addresses;
        if round.is_multiple_of(2) {
            [first, second]
        } else {
            [second, first]
        }
    }

    const fn sum_at(&self, round: u32) -> DevicePtr {
        self.sums + 4 * round as u64
    }

    /// What a round's sum is where each round adds one to each word.
    const fn right(&self, round: u32) -> u32 {
        self.words.wrapping_mul(round + 1)
    }

    /// Sets all words and sums to 0.
    fn clear(&self, stream: &CudaStream) -> Result<(), Box<dyn Error>> {
        for (at, count) in [(self.addresses[0], self.words), (self.sums, self.rounds)] {
            // SAFETY: ours, and nothing is queued on it.
            unsafe {
                self.driver
                    .fill_words(at, 0, u64::from(count), handle_of(stream))
            }?;
        }
        stream.synchronize()?;
        Ok(())
    }

    /// The sums, once the stream is done.
    fn sums(&self, stream: &CudaStream) -> Result<Vec<u32>, Box<dyn Error>> {
        let mut sums = vec![0_u32; self.rounds as usize];
        let (to, bytes) = (sums.as_mut_ptr().cast(), 4 * sums.len() as u64);
        // SAFETY: ours; the copy is over before the sums are read.
        unsafe {
            self.driver
                .copy_to_host(to, self.sums, bytes, handle_of(stream))
        }?;
        stream.synchronize()?;
        Ok(sums)
    }

    /// How many sums are not right.
    fn stale(&self, stream: &CudaStream) -> Result<u32, Box<dyn Error>> {
        let sums = self.sums(stream)?;
        let wrong = sums
            .iter()
            .zip(0..)
            .filter(|(sum, round)| **sum != self.right(*round));
        Ok(wrong.count() as u32)
    }

    fn give_back(self) -> Result<(), Box<dyn Error>> {
        let [start, _] = self.addresses;
        for place in 0..2 * self.handles.len() as u64 {
            let at = start + place * self.handle_bytes;
            // SAFETY: mapped in `new`, and all work on it has ended.
            unsafe { self.driver.unmap(at, self.handle_bytes) }?;
        }
        for handle in self.handles {
            // SAFETY: created in `new`, mapped nowhere any more.
            unsafe { self.driver.release_memory(handle) }?;
        }
        // SAFETY: reserved in `new`, nothing is mapped there.
        unsafe { self.driver.free_reserved(start, 2 * self.bytes) }?;
        // SAFETY: given in `new`, and all work on it has ended.
        unsafe { self.driver.free_device(self.sums) }?;
        Ok(())
    }
}

fn handle_of(stream: &CudaStream) -> StreamHandle {
    StreamHandle(stream.cu_stream().expose_provenance())
}

struct Case<'a> {
    context: &'a Context,
    memory: &'a Aliased<'a>,
    kernels: &'a Kernels,
    stream: std::sync::Arc<CudaStream>,
}

impl Case<'_> {
    /// How many rounds read what was there before; `None` where the device cannot do it.
    fn stale(&self, way: Way) -> Result<Option<u32>, Box<dyn Error>> {
        self.memory.clear(&self.stream)?;
        Ok(Some(match way {
            Way::Kernel | Way::ReadOnly => self.kernel(way == Way::ReadOnly)?,
            Way::Fill => self.fill()?,
            Way::CopyIn => self.copy_in()?,
            Way::CopyOut => self.copy_out()?,
            Way::Graph => self.graph()?,
            Way::Streams => self.streams()?,
            Way::Waiting | Way::Early => return self.dependent(way == Way::Waiting),
        }))
    }

    /// Adds one to each word.
    fn add(&self, at: DevicePtr) -> Result<(), Box<dyn Error>> {
        let (stream, words) = (self.stream.cu_stream(), self.memory.words);
        // SAFETY: the memory is ours, whole.
        unsafe { self.kernels.add(stream, at, words) }?;
        Ok(())
    }

    /// Sums the words up for a round.
    fn sum(&self, stream: &CudaStream, at: DevicePtr, round: u32) -> Result<(), Box<dyn Error>> {
        self.sum_by(stream, at, round, false)
    }

    fn sum_by(
        &self,
        stream: &CudaStream,
        at: DevicePtr,
        round: u32,
        read_only: bool,
    ) -> Result<(), Box<dyn Error>> {
        let (words, to) = (self.memory.words, self.memory.sum_at(round));
        // SAFETY: the memory is ours, whole, and so is the word.
        unsafe {
            self.kernels
                .sum(stream.cu_stream(), at, words, to, read_only)
        }?;
        Ok(())
    }

    fn kernel(&self, read_only: bool) -> Result<u32, Box<dyn Error>> {
        for round in 0..self.memory.rounds {
            let [write, read] = self.memory.turned(round);
            self.add(write)?;
            self.sum_by(&self.stream, read, round, read_only)?;
        }
        self.memory.stale(&self.stream)
    }

    fn fill(&self) -> Result<u32, Box<dyn Error>> {
        let memory = self.memory;
        for round in 0..memory.rounds {
            let [write, read] = memory.turned(round);
            let count = u64::from(memory.words);
            // SAFETY: the memory is ours, whole.
            unsafe {
                memory
                    .driver
                    .fill_words(write, round + 1, count, handle_of(&self.stream))
            }?;
            self.sum(&self.stream, read, round)?;
        }
        memory.stale(&self.stream)
    }

    fn copy_in(&self) -> Result<u32, Box<dyn Error>> {
        let memory = self.memory;
        let host = memory.driver.alloc_host(memory.bytes, 0)?;
        for round in 0..memory.rounds {
            let [write, read] = memory.turned(round);
            // SAFETY: given above, so long, for words; no copy is under way.
            let words = unsafe {
                core::slice::from_raw_parts_mut(host.cast::<u32>(), memory.words as usize)
            };
            words.fill(round + 1);
            let stream = handle_of(&self.stream);
            // SAFETY: both are ours, whole; the copy is over before the host's memory is written again.
            unsafe {
                memory
                    .driver
                    .copy_to_device(write, host.cast(), memory.bytes, stream)
            }?;
            self.sum(&self.stream, read, round)?;
            self.stream.synchronize()?;
        }
        // SAFETY: given above, and no copy is under way.
        unsafe { memory.driver.free_host(host) }?;
        memory.stale(&self.stream)
    }

    fn copy_out(&self) -> Result<u32, Box<dyn Error>> {
        let memory = self.memory;
        let host = memory.driver.alloc_host(memory.bytes, 0)?;
        let mut stale = 0;
        for round in 0..memory.rounds {
            let [write, read] = memory.turned(round);
            self.add(write)?;
            let stream = handle_of(&self.stream);
            // SAFETY: both are ours, whole; the copy is over before the host's memory is read.
            unsafe {
                memory
                    .driver
                    .copy_to_host(host.cast(), read, memory.bytes, stream)
            }?;
            self.stream.synchronize()?;
            // SAFETY: given above, so long, for words; no copy is under way.
            let words =
                unsafe { core::slice::from_raw_parts(host.cast::<u32>(), memory.words as usize) };
            let sum = words
                .iter()
                .fold(0_u32, |sum, word| sum.wrapping_add(*word));
            stale += u32::from(sum != memory.right(round));
        }
        // SAFETY: given above, and no copy is under way.
        unsafe { memory.driver.free_host(host) }?;
        Ok(stale)
    }

    /// One graph that writes and reads both ways, launched again and again.
    fn graph(&self) -> Result<u32, Box<dyn Error>> {
        let (memory, stream) = (self.memory, self.stream.cu_stream());
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream exists and captures nothing.
        unsafe { result::stream::begin_capture(stream, mode) }?;
        for round in 0..2 {
            let [write, read] = memory.turned(round);
            self.add(write)?;
            self.sum(&self.stream, read, round)?;
        }
        // SAFETY: the stream captures.
        let graph = unsafe { result::stream::end_capture(stream) }?;
        let mut runnable = std::ptr::null_mut();
        // SAFETY: the graph was made just now; the handle outlives the call.
        unsafe { sys::cuGraphInstantiateWithFlags(&raw mut runnable, graph, 0) }.result()?;
        let (mut stale, mut right) = (0, [0_u32; 2]);
        for launch in 0..memory.rounds {
            // SAFETY: both exist.
            unsafe { sys::cuGraphLaunch(runnable, stream) }.result()?;
            right[0] = right[0].wrapping_add(memory.right(2 * launch));
            right[1] = right[1].wrapping_add(memory.right(2 * launch + 1));
            stale += u32::from(memory.sums(&self.stream)?[..2] != right);
        }
        // SAFETY: made above, and all its work has ended.
        unsafe { sys::cuGraphExecDestroy(runnable) }.result()?;
        // SAFETY: made above, and launched no more.
        unsafe { result::graph::destroy(graph) }?;
        Ok(stale)
    }

    /// The sums are made on another stream, which waits for an event.
    fn streams(&self) -> Result<u32, Box<dyn Error>> {
        let second = self.context.cudarc().new_stream()?;
        let (written, read_all) = (
            Event::new(self.context, EventConfig::default())?,
            Event::new(self.context, EventConfig::default())?,
        );
        for round in 0..self.memory.rounds {
            let [write, read] = self.memory.turned(round);
            self.add(write)?;
            written.record(&self.stream)?;
            written.wait_on(&second)?;
            self.sum(&second, read, round)?;
            read_all.record(&second)?;
            read_all.wait_on(&self.stream)?;
        }
        self.memory.stale(&self.stream)
    }

    /// The sum may begin before the addition has ended, and waits for it or not.
    fn dependent(&self, waits: bool) -> Result<Option<u32>, Box<dyn Error>> {
        let memory = self.memory;
        let capability = constants::DEVICE_COMPUTE_CAPABILITY_MAJOR;
        let capability = memory
            .driver
            .device_attribute(self.context.device(), capability)?;
        if memory.driver.stand_in().is_some() || capability < 9 {
            return Ok(None);
        }
        let kernels = self.kernels.dependent()?;
        let stream = self.stream.cu_stream();
        for round in 0..memory.rounds {
            let [write, read] = memory.turned(round);
            // SAFETY: the memory is ours, whole.
            unsafe { kernels.add_early(stream, write, memory.words) }?;
            let to = memory.sum_at(round);
            // SAFETY: the memory is ours, whole, and so is the word.
            unsafe { kernels.sum(stream, read, memory.words, to, waits) }?;
        }
        memory.stale(&self.stream).map(Some)
    }
}
