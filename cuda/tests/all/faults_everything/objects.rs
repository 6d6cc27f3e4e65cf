//! The objects of the scenario, and the calls that its parts share.

use std::sync::Arc;

use cudarc::driver::{
    CudaFunction, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg, result,
};
use larder_core::Block;
use larder_core::prmalloc::{PlannedPoolConfig, Window};
use larder_cuda::{
    BufferViewMut, Context, DeviceAllocator, DeviceBuffer, DeviceConfig, Launch, PinnedAllocator,
    TensorPoolConfig,
};

use crate::common::MIB;
use crate::common::kernels::load_add;
use crate::faults_everything::failure::Failure;

/// The allocator's limit: nine pages.
const BUDGET: u64 = 18 * MIB;

pub(crate) const LEN: usize = 300;

pub(crate) struct Objects {
    pub(crate) context: Context,
    pub(crate) streams: [Arc<CudaStream>; 3],
    pub(crate) add: CudaFunction,
    pub(crate) pinned: PinnedAllocator,
    pub(crate) memory: DeviceAllocator,
}

impl Objects {
    pub(crate) fn make(context: &Context) -> Result<Self, Failure> {
        let cudarc = context.cudarc();
        let streams = [
            cudarc.new_stream()?,
            cudarc.new_stream()?,
            cudarc.new_stream()?,
        ];
        let add = load_add(context)?;
        let memory = DeviceAllocator::with_config(context, DeviceConfig::with_budget(BUDGET))?;
        for stream in &streams {
            memory.add_stream(stream)?;
        }
        let pinned = PinnedAllocator::new(context)?;
        for stream in &streams {
            pinned.add_stream(stream);
        }
        Ok(Self {
            context: context.clone(),
            streams,
            add,
            pinned,
            memory,
        })
    }

    /// Returns an error that cudarc could not return to a caller.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        Ok(self.context.cudarc().check_err()?)
    }

    /// Reads values of a device, and checks for errors.
    pub(crate) fn read<T: DeviceRepr, D: DevicePtr<T>>(
        &self,
        stream: &Arc<CudaStream>,
        from: &D,
    ) -> Result<Vec<T>, Failure> {
        let values = stream.clone_dtoh(from)?;
        self.check()?;
        Ok(values)
    }

    pub(crate) fn add_on(
        &self,
        stream: &Arc<CudaStream>,
        mut to: BufferViewMut<'_, u32>,
        from: &DeviceBuffer<u32>,
    ) -> Result<(), Failure> {
        let mut launch = Launch::on(stream, &self.add);
        launch.arg(&mut to).arg(from).arg(&(LEN as u32));
        // SAFETY: these are the kernel's parameters.
        unsafe { launch.launch(LaunchConfig::for_num_elems(LEN as u32)) }?;
        Ok(())
    }

    /// Allocates a block that is freed in the order of its streams when it is dropped.
    pub(crate) fn block(&self, streams: &[usize], bytes: u64) -> Result<Held<'_>, Failure> {
        let streams: Vec<_> = streams.iter().map(|at| self.streams[*at].clone()).collect();
        let block = self.memory.alloc(&streams[0], bytes)?;
        Ok(Held {
            memory: &self.memory,
            streams,
            block: Some(block),
        })
    }
}

/// A pool that is planned after two identical steps, with small tables.
pub(crate) fn tensor_config() -> TensorPoolConfig {
    let mut pool = PlannedPoolConfig::new();
    pool.planner.window = Window {
        start: 0,
        stable: 0,
        max: 50,
    };
    pool.replan = None;
    TensorPoolConfig {
        stats: 64,
        bins: 32,
        blocks: 32,
        virtuals: 32,
        live: 32,
        ..TensorPoolConfig::with_pool(pool)
    }
}

/// A block of the allocator that is freed even after an error.
pub(crate) struct Held<'m> {
    memory: &'m DeviceAllocator,
    streams: Vec<Arc<CudaStream>>,
    block: Option<Block>,
}

impl Held<'_> {
    pub(crate) fn address(&self) -> u64 {
        self.block.as_ref().unwrap().addr().get()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.block.as_ref().unwrap().bytes()
    }

    /// Uses the block on another stream from now on, after the work of its first stream.
    pub(crate) fn use_on(&mut self, stream: &Arc<CudaStream>) -> Result<(), Failure> {
        self.memory.order_after(stream, &self.streams[0])?;
        self.streams.push(stream.clone());
        Ok(())
    }

    /// Writes the block's first and last bytes.
    pub(crate) fn fill(&self, stream: &CudaStream, value: u8) -> Result<(), Failure> {
        for at in self.places() {
            fill(stream, at, value)?;
        }
        Ok(())
    }

    /// Checks the block's first and last bytes.
    pub(crate) fn expect(&self, stream: &CudaStream, value: u8) -> Result<(), Failure> {
        for at in self.places() {
            expect(stream, at, value)?;
        }
        Ok(())
    }

    fn places(&self) -> [u64; 2] {
        [self.address(), self.address() + self.bytes() - WRITTEN]
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let freed = match &*self.streams {
                [origin] => self.memory.free(origin, block),
                streams => self.memory.free_used_on(streams, block),
            };
            assert!(freed.is_ok() || std::thread::panicking(), "{freed:?}");
        }
    }
}

pub(crate) const WRITTEN: u64 = 64;

pub(crate) fn fill(stream: &CudaStream, at: u64, value: u8) -> Result<(), Failure> {
    stream.context().bind_to_thread()?;
    // SAFETY: the scenario fills only blocks that it holds.
    unsafe { result::memset_d8_async(at, value, WRITTEN as usize, stream.cu_stream()) }?;
    Ok(())
}

/// Checks memory once the stream's work is done.
pub(crate) fn expect(stream: &CudaStream, at: u64, value: u8) -> Result<(), Failure> {
    stream.context().bind_to_thread()?;
    let mut host = [0; WRITTEN as usize];
    // SAFETY: the scenario reads only blocks that it holds; a copy to memory that is not pinned has ended when the call
    // returns.
    unsafe { result::memcpy_dtoh_async(&mut host, at, stream.cu_stream()) }?;
    assert_eq!(host, [value; WRITTEN as usize]);
    Ok(())
}
