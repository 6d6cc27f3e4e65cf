//! Owners of the driver's objects, so that a test ends with nothing left.

use larder_cuda_abi::{DevicePtr, EventHandle, FunctionHandle, ModuleHandle, StreamHandle};

use crate::{
    api::{Answer, copy, memory, module, stream, unified},
    gpu, kernels,
};

/// Memory of cuMemAlloc.
#[derive(Debug)]
pub(crate) struct Device {
    /// Where it starts.
    pub(crate) at: DevicePtr,
    bytes: usize,
}

impl Device {
    /// Of any content.
    pub(crate) fn new(bytes: usize) -> Self {
        let at = memory::alloc(bytes).expect("device memory");
        Self { at, bytes }
    }

    /// Filled, and the fill has ended: a synchronous copy from pageable memory may return when
    /// its source is staged, so its stream is waited for.
    pub(crate) fn filled(bytes: usize, value: u8) -> Self {
        let new = Self::new(bytes);
        copy::to_device(new.at, &vec![value; bytes]).expect("a copy");
        stream::synchronize(StreamHandle::NULL).expect("work that ends well");
        new
    }

    /// Its bytes, by a synchronous copy.
    pub(crate) fn read(&self) -> Vec<u8> {
        read(self.at, self.bytes)
    }

    /// Its bytes as words.
    pub(crate) fn words(&self) -> Vec<u32> {
        words(self.at, self.bytes)
    }

    /// The address `offset` bytes behind the start.
    pub(crate) const fn plus(&self, offset: u64) -> DevicePtr {
        self.at + offset
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = memory::free(self.at);
    }
}

/// Device bytes, by a synchronous copy.
pub(crate) fn read(at: DevicePtr, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    copy::to_host(&mut read, at).expect("a copy");
    read
}

/// Device words, by a synchronous copy.
pub(crate) fn words(at: DevicePtr, bytes: usize) -> Vec<u32> {
    let read = read(at, bytes);
    let (words, _) = read.as_chunks::<4>();
    words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

/// What gives host memory back.
#[derive(Debug)]
enum Owner {
    /// cuMemHostAlloc.
    Pinned,
    /// cuMemAllocManaged.
    Managed,
    /// Nobody: ordinary memory, which no driver knows yet.
    Pageable(#[expect(dead_code, reason = "keeps the memory")] Vec<u8>),
}

/// Memory of the host: pinned, managed or pageable. The host may use it while no work of a device is
/// pending that does.
#[derive(Debug)]
pub(crate) struct Host {
    /// Where the host sees it.
    pub(crate) address: usize,
    bytes: usize,
    owner: Owner,
}

impl Host {
    /// Pinned and filled by the host.
    pub(crate) fn pinned(bytes: usize, value: u8) -> Self {
        let new = Self::pinned_with(bytes, 0);
        new.fill(value);
        new
    }

    /// Pinned with these flags; holds whatever.
    pub(crate) fn pinned_with(bytes: usize, flags: u32) -> Self {
        Self {
            address: memory::host_alloc(bytes, flags).expect("pinned memory"),
            bytes,
            owner: Owner::Pinned,
        }
    }

    /// Managed, of any content.
    pub(crate) fn managed(bytes: usize, flags: u32) -> Self {
        let at = memory::alloc_managed(bytes, flags).expect("managed memory");
        Self {
            address: at as usize,
            bytes,
            owner: Owner::Managed,
        }
    }

    /// Ordinary memory of whole pages, filled.
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

    /// The host writes all of it.
    pub(crate) fn fill(&self, value: u8) {
        for offset in 0..self.bytes {
            let byte = (self.address as *mut u8).wrapping_add(offset);
            // SAFETY: each byte is alive, and written as a device may read it.
            unsafe { byte.write_volatile(value) };
        }
    }

    /// As the host sees it.
    pub(crate) fn read(&self) -> Vec<u8> {
        let start = self.address as *const u8;
        // SAFETY: each byte is alive, and read as a device may write it: one by one, volatile.
        let byte = |offset| unsafe { start.wrapping_add(offset).read_volatile() };
        (0..self.bytes).map(byte).collect()
    }

    /// As the device sees it, of pageable memory once that is registered.
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

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream(pub(crate) StreamHandle);

impl Stream {
    /// One that the legacy default stream waits for and that waits for it.
    pub(crate) fn blocking() -> Self {
        Self(stream::create(0).expect("a stream"))
    }

    /// One that has nothing to do with the legacy default stream.
    pub(crate) fn non_blocking() -> Self {
        let flags = larder_cuda_abi::constants::STREAM_NON_BLOCKING;
        Self(stream::create(flags).expect("a stream"))
    }

    /// Waits for it.
    pub(crate) fn finish(&self) {
        stream::synchronize(self.0).expect("work that ends well");
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = stream::destroy(self.0);
    }
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event(pub(crate) EventHandle);

impl Event {
    /// With timing.
    pub(crate) fn new() -> Self {
        Self::with(0)
    }

    /// With flags.
    pub(crate) fn with(flags: u32) -> Self {
        Self(stream::create_event(flags).expect("an event"))
    }

    /// Recorded.
    pub(crate) fn record(&self, at: StreamHandle) {
        stream::record(self.0, at).expect("a record");
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = stream::destroy_event(self.0);
    }
}

/// The module with the kernels, each of which has run once: a driver may load kernels lazily, and loading may wait
/// for the device.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// The module.
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
    /// Loads them.
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

    /// Queues `fill_u32` over `count` words.
    pub(crate) fn fill(&self, out: DevicePtr, count: u32, value: u32, stream: StreamHandle) {
        let parameters = [out, u64::from(count), u64::from(value)];
        module::launch(self.fill, module::Shape::over(count), stream, &parameters)
            .expect("a launch");
    }

    /// `fill_u32` of 256 words over a grid that may be refused.
    pub(crate) fn try_fill(&self, out: DevicePtr, grid: [u32; 3], block: [u32; 3]) -> Answer {
        let shape = module::Shape { grid, block };
        module::launch(self.fill, shape, StreamHandle::NULL, &[out, 256, 1])
    }

    /// Queues `add_words` over `count` words.
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

    /// Queues `scale_words` over `count` words in place.
    pub(crate) fn scale(&self, at: DevicePtr, count: u32, factor: u32, stream: StreamHandle) {
        let parameters = [at, at, u64::from(count), u64::from(factor)];
        module::launch(self.scale, module::Shape::over(count), stream, &parameters)
            .expect("a launch");
    }

    /// Queues `sum_words` over `count` words, which adds them to the word at `to`.
    pub(crate) fn sum(&self, from: DevicePtr, count: u32, to: DevicePtr, stream: StreamHandle) {
        let parameters = [from, u64::from(count), to];
        module::launch(self.sum, module::Shape::WIDE, stream, &parameters).expect("a launch");
    }

    /// Queues `sum_words_read_only`.
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
