//! Physical memory mapped at two addresses: one operation writes through one address, and the next reads through the
//! other.
//!
//! Pages that move stay mapped at their old addresses, so Larder relies on this between one operation and the next. A
//! kernel that reads before the previous kernel has ended may read wrong values even through one address, so such a
//! launch proves nothing and is not tried.

use larder_cuda_abi::{DevicePtr, StreamHandle, constants};

use super::{Mapped, Physical, Reserved, granule};
use crate::{
    api::{basic, capture, copy, module, stream},
    gpu::{self, portable, real_only},
    kernels::DEPENDENT_PTX,
    own::{Device, Event, Host, Kernels, Stream},
};

/// Each round multiplies every word by this, so that every word changes.
const FACTOR: u32 = 3;

/// Memory of several handles mapped at two addresses, in which every word is 1 at first, and plain memory with a word
/// for the sum of each round.
struct Aliased<'a> {
    kernels: &'a Kernels,
    stream: Stream,
    // Before the handles and the addresses, so that the mappings are dropped first.
    _mapped: Vec<Mapped>,
    _physical: Vec<Physical>,
    range: Reserved,
    bytes: usize,
    words: u32,
    rounds: u32,
    sums: Device,
}

/// A round's number, and the addresses at which it writes and reads, which alternate.
type Round = (u32, DevicePtr, DevicePtr);

impl<'a> Aliased<'a> {
    fn new(kernels: &'a Kernels, handle_bytes: usize, count: usize, rounds: u32) -> Self {
        let bytes = handle_bytes * count;
        let range = Reserved::new(2 * bytes);
        let physical: Vec<_> = (0..count).map(|_| Physical::new(handle_bytes)).collect();
        let both = [0, bytes].into_iter();
        let places = both.flat_map(|start| (0..count).map(move |number| (start, number)));
        let mapped = places.map(|(start, number)| {
            Mapped::new(range.plus(start + number * handle_bytes), &physical[number])
        });
        let new = Self {
            kernels,
            stream: Stream::non_blocking(),
            _mapped: mapped.collect(),
            _physical: physical,
            range,
            bytes,
            words: u32::try_from(bytes / 4).expect("a number of words"),
            rounds,
            sums: Device::filled(4 * rounds as usize, 0),
        };
        copy::fill32_async(new.range.at, 1, bytes / 4, new.stream.0).expect("a fill");
        new
    }

    fn rounds(&self) -> impl Iterator<Item = Round> {
        let addresses = [self.range.at, self.range.plus(self.bytes)];
        (0..self.rounds).map(move |round| match round.is_multiple_of(2) {
            true => (round, addresses[0], addresses[1]),
            false => (round, addresses[1], addresses[0]),
        })
    }

    /// Returns the value of each word after a round.
    const fn word(round: u32) -> u32 {
        FACTOR.wrapping_pow(round + 1)
    }

    const fn sum_at(&self, round: u32) -> DevicePtr {
        self.sums.plus(4 * round as u64)
    }

    fn scale(&self, at: DevicePtr) {
        self.kernels.scale(at, self.words, FACTOR, self.stream.0);
    }

    fn sum(&self, at: DevicePtr, round: u32, stream: StreamHandle) {
        let to = self.sum_at(round);
        self.kernels.sum(at, self.words, to, stream);
    }

    /// Waits for the stream, and returns the number of wrong sums.
    fn stale(&self) -> usize {
        self.stream.finish();
        let right = |round| self.words.wrapping_mul(Self::word(round));
        let sums = self.sums.words().into_iter().zip(0..);
        sums.filter(|(sum, round)| *sum != right(*round)).count()
    }
}

/// Checks that no round of `work` reads old values: with one page, and with several handles that have more memory than
/// a device's cache.
fn assert_fresh(way: &str, work: impl Fn(&Aliased<'_>)) {
    let is_real = gpu::stand_in().is_none();
    let (large, rounds) = if is_real {
        (64 << 20, [300, 20])
    } else {
        (granule(), [4, 2])
    };
    let kernels = Kernels::load();
    let mut is_one = true;
    for (handle_bytes, count, rounds, size) in [
        (granule(), 1, rounds[0], "one page"),
        (large, 8, rounds[1], "8 handles, 512 MiB on a GPU"),
    ] {
        let memory = Aliased::new(&kernels, handle_bytes, count, rounds);
        work(&memory);
        let stale = memory.stale();
        is_one &= gpu::answer(
            &format!("two addresses, {way}: {size}"),
            &format!("stale in {stale} of {rounds} rounds"),
            &stale.to_string(),
            "two mappings of one handle are one memory",
            stale == 0,
        );
    }
    assert!(is_one, "stale: see the answers");
}

/// Rule: a kernel reads through one address what the previous kernel in its stream wrote through another address
/// (source: CUDA Programming Guide, Virtual Memory Management, Virtual Aliasing Support: kernels "ordered
/// monotonically").
#[test]
fn a_kernel_reads_what_a_kernel_wrote() {
    let _gpu = portable();
    assert_fresh("kernel then kernel", |memory| {
        for (round, write, read) in memory.rounds() {
            memory.scale(write);
            memory.sum(read, round, memory.stream.0);
        }
    });
}

/// Rule: reads through the read-only cache (`ld.global.nc`), too, see what the previous kernel wrote through another
/// address (source: CUDA Programming Guide, Virtual Memory Management, Virtual Aliasing Support).
#[test]
fn a_read_only_load_reads_what_a_kernel_wrote() {
    let _gpu = portable();
    assert_fresh("kernel then ld.global.nc", |memory| {
        for (round, write, read) in memory.rounds() {
            memory.scale(write);
            let (to, stream) = (memory.sum_at(round), memory.stream.0);
            memory.kernels.sum_read_only(read, memory.words, to, stream);
        }
    });
}

/// Rule: a kernel reads through one address what a fill wrote through another (source: CUDA Programming Guide, Virtual
/// Memory Management, Virtual Aliasing Support).
#[test]
fn a_kernel_reads_what_a_fill_wrote() {
    let _gpu = portable();
    assert_fresh("fill then kernel", |memory| {
        for (round, write, read) in memory.rounds() {
            let (word, count) = (Aliased::word(round), memory.bytes / 4);
            copy::fill32_async(write, word, count, memory.stream.0).expect("a fill");
            memory.sum(read, round, memory.stream.0);
        }
    });
}

/// Rule: a kernel reads through one address what the copy engine wrote through another (source: CUDA Programming Guide,
/// Virtual Memory Management, Virtual Aliasing Support).
#[test]
fn a_kernel_reads_what_the_copy_engine_wrote() {
    let _gpu = portable();
    assert_fresh("copy engine then kernel", |memory| {
        let (bytes, stream) = (memory.bytes, memory.stream.0);
        let (plain, host) = (Device::new(bytes), Host::pinned_with(bytes, 0));
        for (round, write, read) in memory.rounds() {
            let word = Aliased::word(round);
            copy::fill32_async(plain.at, word, bytes / 4, stream).expect("a fill");
            copy::to_host_async(host.address, plain.at, bytes, stream).expect("a copy");
            copy::to_device_async(write, host.address, bytes, stream).expect("a copy");
            memory.sum(read, round, stream);
        }
        memory.stream.finish();
    });
}

/// Rule: the copy engine reads through one address what a kernel wrote through another (source: CUDA Programming Guide,
/// Virtual Memory Management, Virtual Aliasing Support).
#[test]
fn the_copy_engine_reads_what_a_kernel_wrote() {
    let _gpu = portable();
    assert_fresh("kernel then copy engine", |memory| {
        let (bytes, stream) = (memory.bytes, memory.stream.0);
        let (plain, host) = (Device::new(bytes), Host::pinned_with(bytes, 0));
        for (round, write, read) in memory.rounds() {
            memory.scale(write);
            copy::to_host_async(host.address, read, bytes, stream).expect("a copy");
            copy::to_device_async(plain.at, host.address, bytes, stream).expect("a copy");
            memory.sum(plain.at, round, stream);
        }
        memory.stream.finish();
    });
}

/// Rule: if a graph is launched repeatedly, its kernels read through each of two addresses what its kernels wrote
/// through the other (source: CUDA Programming Guide, Virtual Memory Management, Virtual Aliasing Support).
#[test]
fn a_graphs_kernels_read_what_its_kernels_wrote() {
    let _gpu = portable();
    assert_fresh("kernels of a graph", |memory| {
        let (stream, pair) = (memory.stream.0, Device::new(8));
        capture::begin(stream, constants::CAPTURE_MODE_RELAXED).expect("a capture");
        copy::fill32_async(pair.at, 0, 2, stream).expect("a fill");
        for (round, write, read) in memory.rounds().take(2) {
            memory.scale(write);
            let to = pair.plus(4 * u64::from(round));
            memory.kernels.sum(read, memory.words, to, stream);
        }
        let graph = capture::end(stream).expect("a graph");
        let exec = capture::instantiate(graph).expect("a graph that can run");
        for (round, ..) in memory.rounds().step_by(2) {
            capture::launch(exec, stream).expect("a launch");
            copy::between_async(memory.sum_at(round), pair.at, 8, stream).expect("a copy");
        }
        memory.stream.finish();
        capture::destroy_exec(exec).expect("a graph");
        capture::destroy(graph).expect("a graph");
    });
}

/// Rule: a kernel reads through one address what a kernel of another stream wrote through another, if an event orders
/// them (source: CUDA Programming Guide, Virtual Memory Management, Virtual Aliasing Support: "via stream or events").
#[test]
fn a_kernel_reads_what_a_kernel_of_another_stream_wrote() {
    let gpu = portable();
    gpu.defer(45);
    assert_fresh("kernels of two streams and an event", |memory| {
        let (first, second) = (memory.stream.0, Stream::non_blocking());
        let (written, read_all) = (Event::new(), Event::new());
        for (round, write, read) in memory.rounds() {
            memory.scale(write);
            written.record(first);
            stream::wait(second.0, written.0).expect("a wait");
            memory.sum(read, round, second.0);
            read_all.record(second.0);
            stream::wait(first, read_all.0).expect("a wait");
        }
        memory.stream.finish();
    });
}

/// Rule: a kernel that may begin before the previous kernel has ended reads what that kernel wrote, once it has waited
/// for that kernel (source: CUDA Programming Guide, Programmatic Dependent Launch and Synchronization; Virtual Aliasing
/// Support).
#[test]
fn a_dependent_launch_that_waits_reads_what_a_kernel_wrote() {
    let Some(_gpu) = real_only("it launches no kernel before the one ahead has ended") else {
        return;
    };
    let major = basic::device_attribute(constants::DEVICE_COMPUTE_CAPABILITY_MAJOR, 0);
    if major.expect("a capability") < 9 {
        println!("skipped: needs a device of capability 9.0");
        return;
    }
    let dependent = module::load(DEPENDENT_PTX).expect("a module");
    let function = |name| module::function(dependent, name).expect("a kernel");
    let (triple, sum) = (function(c"triple_early"), function(c"sum_waiting"));
    assert_fresh("a dependent launch that waits", |memory| {
        let (shape, stream, words) = (module::Shape::WIDE, memory.stream.0, memory.words.into());
        for (round, write, read) in memory.rounds() {
            module::launch(triple, shape, stream, &[write, words]).expect("a launch");
            let parameters = [read, words, memory.sum_at(round)];
            let mut early = [module::begins_early()];
            module::launch_ex(sum, shape, stream, &parameters, &mut early).expect("a launch");
        }
    });
    module::unload(dependent).expect("a module");
}
