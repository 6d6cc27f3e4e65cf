//! The base of these tests: best fit over a buffer, an allocator without sizes, and an access that refuses calls.

use std::cell::{Cell, RefCell};

use larder_core::{
    AccessError, Addr, AddrRange, AllocError, Block, BlockAllocator, Chunk, FixedRange, FreeError,
    Grant, Growth, MemoryAccess, Pattern, RegionConfig, RegionPool, Rejected, Request, Shared,
    SliceAccess, Stats, StreamId, StreamPoint,
};

/// The first address of the buffer, a multiple of every alignment in the tests.
pub(crate) const BASE: u64 = 1 << 32;

pub(crate) type Best = Shared<RegionPool<'static>, FixedRange>;

/// Returns a best-fit allocator over `bytes` bytes from [`BASE`] on.
pub(crate) fn best_fit(bytes: u64, granule_bytes: u64, records: usize) -> Best {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: bytes,
            ahead_divisor: None,
        },
        granule_bytes,
        ..RegionConfig::default()
    };
    let table = vec![Chunk::VACANT; records].leak();
    let bfc = RegionPool::new(config, table).unwrap();
    let range = AddrRange::new(Addr::new(BASE), bytes).unwrap();
    Shared::new(bfc, FixedRange::new(range))
}

/// Returns a buffer of zeros at the same addresses.
pub(crate) fn buffer(bytes: u64) -> SliceAccess<'static> {
    SliceAccess::new(Addr::new(BASE), vec![0; bytes as usize].leak())
}

pub(crate) fn alloc(allocator: &impl BlockAllocator, bytes: u64) -> Block {
    allocator.alloc(&Request::new(bytes)).unwrap().block
}

pub(crate) fn read_byte(access: &impl MemoryAccess, at: u64) -> u8 {
    let mut byte = [0];
    access
        .read(StreamId::MAIN, Addr::new(at), &mut byte)
        .unwrap();
    byte[0]
}

pub(crate) fn write(access: &impl MemoryAccess, at: u64, bytes: &[u8]) {
    access.write(StreamId::MAIN, Addr::new(at), bytes).unwrap();
}

pub(crate) fn flip(access: &impl MemoryAccess, at: u64, bits: u8) {
    let byte = read_byte(access, at);
    write(access, at, &[byte ^ bits]);
}

/// Hides the sizes that the inner allocator knows, like an allocator that does not track them.
pub(crate) struct Untracked<A>(pub(crate) A);

impl<A: BlockAllocator> BlockAllocator for Untracked<A> {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        self.0.alloc(request)
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        self.0.free_at(block, point)
    }

    fn requested_bytes(&self, _: &Block) -> Option<u64> {
        None
    }

    fn allocation_id(&self, _: &Block) -> Option<u64> {
        None
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }

    fn tracks_sizes(&self) -> bool {
        false
    }
}

/// A call of an access, with its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touch {
    Read(u8),
    Write(u8),
    Fill(u8),
    Wait(u8, StreamPoint),
}

/// An access that records its calls and can refuse one.
pub(crate) struct Watched<M> {
    inner: M,
    touches: RefCell<Vec<Touch>>,
    /// The number of calls before the refused one, if there is one.
    refuse_in: Cell<Option<u64>>,
}

pub(crate) const REFUSED: AccessError = AccessError::Refused { code: 700 };

impl<M> Watched<M> {
    pub(crate) fn new(inner: M) -> Self {
        Self {
            inner,
            touches: RefCell::default(),
            refuse_in: Cell::new(None),
        }
    }

    /// Returns the inner access, whose calls are not recorded.
    pub(crate) fn inner(&self) -> &M {
        &self.inner
    }

    pub(crate) fn take(&self) -> Vec<Touch> {
        self.touches.take()
    }

    /// Refuses one call after `calls` more.
    pub(crate) fn refuse_in(&self, calls: u64) {
        self.refuse_in.set(Some(calls));
    }

    fn note(&self, touch: Touch) -> Result<(), AccessError> {
        self.touches.borrow_mut().push(touch);
        match self.refuse_in.get() {
            Some(0) => {
                self.refuse_in.set(None);
                Err(REFUSED)
            }
            left => {
                self.refuse_in.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}

impl<M: MemoryAccess> MemoryAccess for Watched<M> {
    fn read(&self, stream: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError> {
        self.note(Touch::Read(stream.number()))?;
        self.inner.read(stream, addr, into)
    }

    fn write(&self, stream: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError> {
        self.note(Touch::Write(stream.number()))?;
        self.inner.write(stream, addr, from)
    }

    fn fill(
        &self,
        stream: StreamId,
        range: AddrRange,
        pattern: Pattern,
    ) -> Result<(), AccessError> {
        self.note(Touch::Fill(stream.number()))?;
        self.inner.fill(stream, range, pattern)
    }

    fn wait(&self, stream: StreamId, point: StreamPoint) -> Result<(), AccessError> {
        self.note(Touch::Wait(stream.number(), point))?;
        self.inner.wait(stream, point)
    }
}
