//! Owners of the driver's objects, so that a test leaves nothing behind.

use larder_cuda_abi::{DevicePtr, EventHandle, FunctionHandle, ModuleHandle, StreamHandle};

use crate::{
    api::{Answer, copy, memory, module, stream, unified},
    gpu, kernels,
};

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) at: DevicePtr,
    bytes: usize,
}

impl Device {
    /// Allocates memory with arbitrary contents.
    pub(crate) fn new(bytes: usize) -> Self {
        let at = memory::alloc(bytes).expect("device memory");
        Self { at, bytes }
    }

    /// Allocates and fills memory. A synchronous copy from pageable memory may return once its source is staged, so
    /// this waits for the stream.
    pub(crate) fn filled(bytes: usize, value: u8) -> Self {
        let new = Self::new(bytes);
        copy::to_device(new.at, &vec![value; bytes]).expect("a copy");
        stream::synchronize(StreamHandle::NULL).expect("work that ends well");
        new
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        read(self.at, self.bytes)
    }

    pub(crate) fn words(&self) -> Vec<u32> {
        words(self.at, self.bytes)
    }

    pub(crate) const fn plus(&self, offset: u64) -> DevicePtr {
        self.at + offset
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = memory::free(self.at);
    }
}

pub(crate) fn read(at: DevicePtr, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    copy::to_host(&mut read, at).expect("a copy");
    read
}

pub(crate) fn words(at: DevicePtr, bytes: usize) -> Vec<u32> {
    let read = read(at, bytes);
    let (words, _) = read.as_chunks::<4>();
    words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

/// The kind of host memory, which determines how it is released.
#[derive(Debug)]
enum Owner {
    /// From cuMemHostAlloc.
    Pinned,
    /// From cuMemAllocManaged.
    Managed,
    /// Ordinary memory, which the driver does not know yet.
    Pageable(#[expect(dead_code, reason = "keeps the memory")] Vec<u8>),
}

/// Host memory: pinned, managed or pageable. The host may use it while no pending work of a device uses it.
#[derive(Debug)]
pub(crate) struct Host {
    /// The host's address.
    pub(crate) address: usize,
    bytes: usize,
    owner: Owner,
}

impl Host {
    pub(crate) fn pinned(bytes: usize, value: u8) -> Self {
        let new = Self::pinned_with(bytes, 0);
        new.fill(value);
        new
    }

    /// Allocates pinned memory with these flags and arbitrary contents.
    pub(crate) fn pinned_with(bytes: usize, flags: u32) -> Self {
        Self {
            address: memory::host_alloc(bytes, flags).expect("pinned memory"),
            bytes,
            owner: Owner::Pinned,
        }
    }

    pub(crate) fn managed(bytes: usize, flags: u32) -> Self {
        let at = memory::alloc_managed(bytes, flags).expect("managed memory");
        Self {
            address: at as usize,
            bytes,
            owner: Owner::Managed,
        }
    }

    /// Allocates whole pages of ordinary memory, and fills them.
    pub(crate) fn pageable(bytes: usize, value: u8) -> Self {
        const PAGE: usize = 4096;
        let bytes = bytes.next_multiple_of(PAGE);
        let mut owner = vec![0_u8; bytes + PAGE];
        let new = Self {
            address: (owner.as_mut_ptr() as usize).next_multiple_of(PAGE),
            bytes,
            owner: Owner::Pageable(owner),
        };
        new.fill(value);
        new
    }

    pub(crate) fn fill(&self, value: u8) {
        for offset in 0..self.bytes {
            let byte = (self.address as *mut u8).wrapping_add(offset);
            // SAFETY: each byte is live; the write is volatile, because a device may read it.
            unsafe { byte.write_volatile(value) };
        }
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let start = self.address as *const u8;
        // SAFETY: each byte is live; the reads are volatile and bytewise, because a device may write it.
        let byte = |offset| unsafe { start.wrapping_add(offset).read_volatile() };
        (0..self.bytes).map(byte).collect()
    }

    /// Returns the device's address. Pageable memory has to be registered first.
    pub(crate) const fn at(&self) -> DevicePtr {
        unified(self.address)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = match self.owner {
            Owner::Pinned => memory::free_host(self.address),
            Owner::Managed => memory::free(self.at()),
            Owner::Pageable(_) => Ok(()),
        };
    }
}

/// A stream, destroyed on drop.
#[derive(Debug)]
pub(crate) struct Stream(pub(crate) StreamHandle);

impl Stream {
    /// Creates a stream that waits for the legacy default stream, and for which that stream waits.
    pub(crate) fn blocking() -> Self {
        Self(stream::create(0).expect("a stream"))
    }

    /// Creates a stream that is independent of the legacy default stream.
    pub(crate) fn non_blocking() -> Self {
        let flags = larder_cuda_abi::constants::STREAM_NON_BLOCKING;
        Self(stream::create(flags).expect("a stream"))
    }

    pub(crate) fn finish(&self) {
        stream::synchronize(self.0).expect("work that ends well");
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = stream::destroy(self.0);
    }
}

/// An event, destroyed on drop.
#[derive(Debug)]
pub(crate) struct Event(pub(crate) EventHandle);

impl Event {
    /// Creates an event with timing.
    pub(crate) fn new() -> Self {
        Self::with(0)
    }

    pub(crate) fn with(flags: u32) -> Self {
        Self(stream::create_event(flags).expect("an event"))
    }

    pub(crate) fn record(&self, at: StreamHandle) {
        stream::record(self.0, at).expect("a record");
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = stream::destroy_event(self.0);
    }
}

/// The module with the kernels. Each has run once, because a driver may load kernels lazily, and loading may wait for
/// the device.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) module: ModuleHandle,
    /// `fill_u32(out, count, value)`.
    pub(crate) fill: FunctionHandle,
    /// `add_words(out, left, right, count)`.
    pub(crate) add: FunctionHandle,
    scale: FunctionHandle,
    sum: FunctionHandle,
    sum_read_only: FunctionHandle,
}

impl Kernels {
    /// Loads the module and runs each kernel.
    pub(crate) fn load() -> Self {
        gpu::register_kernels();
        let module = module::load(kernels::PTX).expect("a module");
        let function = |name| module::function(module, name).expect("a kernel");
        let new = Self {
            module,
            fill: function(c"fill_u32"),
            add: function(c"add_words"),
            scale: function(c"scale_words"),
            sum: function(c"sum_words"),
            sum_read_only: function(c"sum_words_read_only"),
        };
        let memory = Device::filled(512, 0);
        let legacy = StreamHandle::NULL;
        new.fill(memory.at, 128, 0, legacy);
        new.add(memory.at, memory.at, memory.at, 128, legacy);
        new.scale(memory.at, 128, 1, legacy);
        new.sum(memory.at, 64, memory.plus(256), legacy);
        new.sum_read_only(memory.at, 64, memory.plus(256), legacy);
        stream::synchronize(legacy).expect("work that ends well");
        new
    }

    pub(crate) fn fill(&self, out: DevicePtr, count: u32, value: u32, stream: StreamHandle) {
        let parameters = [out, u64::from(count), u64::from(value)];
        module::launch(self.fill, module::Shape::over(count), stream, &parameters)
            .expect("a launch");
    }

    /// Queues `fill_u32` for 256 words, with a grid that may be refused.
    pub(crate) fn try_fill(&self, out: DevicePtr, grid: [u32; 3], block: [u32; 3]) -> Answer {
        let shape = module::Shape { grid, block };
        module::launch(self.fill, shape, StreamHandle::NULL, &[out, 256, 1])
    }

    pub(crate) fn add(
        &self,
        out: DevicePtr,
        left: DevicePtr,
        right: DevicePtr,
        count: u32,
        stream: StreamHandle,
    ) {
        let parameters = [out, left, right, u64::from(count)];
        module::launch(self.add, module::Shape::over(count), stream, &parameters)
            .expect("a launch");
    }

    pub(crate) fn scale(&self, at: DevicePtr, count: u32, factor: u32, stream: StreamHandle) {
        let parameters = [at, at, u64::from(count), u64::from(factor)];
        module::launch(self.scale, module::Shape::over(count), stream, &parameters)
            .expect("a launch");
    }

    /// Queues `sum_words`, which adds `count` words to the word at `to`.
    pub(crate) fn sum(&self, from: DevicePtr, count: u32, to: DevicePtr, stream: StreamHandle) {
        let parameters = [from, u64::from(count), to];
        module::launch(self.sum, module::Shape::WIDE, stream, &parameters).expect("a launch");
    }

    pub(crate) fn sum_read_only(
        &self,
        from: DevicePtr,
        count: u32,
        to: DevicePtr,
        stream: StreamHandle,
    ) {
        let parameters = [from, u64::from(count), to];
        let shape = module::Shape::WIDE;
        module::launch(self.sum_read_only, shape, stream, &parameters).expect("a launch");
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = module::unload(self.module);
    }
}
