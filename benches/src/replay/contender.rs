//! What an allocator must offer to be replayed.
//!
//! A contender works on numbers: it hands out addresses on a device that it
//! simulates, and never touches memory at them.

/// A block handed out by a contender: where it is, and how the contender finds
/// its own record of it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// First address of the block.
    pub address: u64,
    /// The contender's own name for the block; whatever it likes.
    pub handle: u32,
}

/// An allocator in a replay.
pub trait Contender {
    /// The name it is known by in tables; the same as its spec's.
    fn name(&self) -> &'static str;

    /// A block of at least `bytes` (never 0), or `None` if it does not fit.
    /// Live blocks never overlap.
    fn alloc(&mut self, bytes: u64) -> Option<Slot>;

    /// Takes back a live block that [`alloc`](Self::alloc) returned. The replay
    /// never frees a block twice.
    fn free(&mut self, slot: Slot);

    /// Bytes held from the device now, live or not.
    fn reserved_bytes(&self) -> u64;

    /// How often the device was asked, with success, for memory.
    fn driver_allocations(&self) -> u64;

    /// How often memory was given back to the device.
    fn driver_frees(&self) -> u64;
}

/// How to build a contender, and what it is.
#[derive(Debug, Clone, Copy)]
pub struct ContenderSpec {
    /// What `--allocator` takes and tables show.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// Builds a fresh one on a device of so many bytes, or without limit.
    pub build: fn(device_bytes: Option<u64>) -> Box<dyn Contender>,
}
