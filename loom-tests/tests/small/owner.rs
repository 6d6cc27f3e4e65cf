//! A thread that owns a heap, doing what the process heap does for a program's thread.

use std::ptr;

use larder_core::small::{Bins, SpanSet, ThreadHeap};

use crate::world::{Block, World};

/// A thread with a heap and bins.
pub(crate) struct Owner {
    world: &'static World,
    pub(crate) heap: &'static ThreadHeap,
    pub(crate) bins: Bins,
}

// SAFETY: bins and the blocks in them are this thread's.
unsafe impl Send for Owner {}

impl Owner {
    pub(crate) fn of(world: &'static World, heap: &'static ThreadHeap, bins: Bins) -> Self {
        let owner = Self { world, heap, bins };
        owner.touch();
        owner
    }

    /// Touches what one owner at a time may.
    fn touch(&self) {
        let mut heaps = self.world.heaps.iter();
        let number = heaps.position(|heap| ptr::eq(heap, self.heap)).unwrap();
        self.world.owned[number].with_mut(|_| ());
    }

    /// What a thread does as its last: it gives its heap up, with what lies in its bins.
    pub(crate) fn park(mut self) {
        self.touch();
        self.world.pool.park(self.heap, self.bins.take_all());
    }

    /// Allocates as a program does, and writes the block.
    pub(crate) fn alloc(&mut self) -> Block {
        self.touch();
        // SAFETY: what lies in the bin is ours.
        let block = unsafe { self.bins.of(self.world.class).pop() };
        if block.is_null() {
            let heap = self.heap;
            return heap.with(|_, parts| self.refill_from(&mut parts.set));
        }
        let block = Block(block);
        block.write();
        block
    }

    pub(crate) fn alloc_all<const N: usize>(&mut self) -> [Block; N] {
        std::array::from_fn(|_| self.alloc())
    }

    /// Finds a block for the empty bin; `set` is the heap's, under its lock.
    pub(crate) fn refill_from(&mut self, set: &mut SpanSet) -> Block {
        let Self { world, heap, bins } = self;
        let bin = bins.of(world.class);
        // SAFETY: the heap's own mailbox, our bin, the same pages always.
        let fresh = unsafe { set.refill(heap.mailbox(), world.class, bin, &mut &**world) };
        let block = Block(fresh.expect("memory does not end").block.as_ptr());
        block.write();
        block
    }

    /// Frees as a program does: into the bin, which may be emptied first.
    pub(crate) fn free(&mut self, block: Block) {
        self.touch();
        block.write();
        // SAFETY: the block is given up.
        if unsafe { self.bins.of(self.world.class).push(block.0) } {
            return;
        }
        let heap = self.heap;
        heap.with(|_, parts| self.make_room_in(&mut parts.set));
        // SAFETY: the block is given up.
        assert!(unsafe { self.bins.of(self.world.class).push(block.0) });
    }

    /// Makes room in the full bin; `set` is the heap's, under its lock.
    pub(crate) fn make_room_in(&mut self, set: &mut SpanSet) {
        let Self { world, heap, bins } = self;
        let bin = bins.of(world.class);
        // SAFETY: the heap's own mailbox, our bin, the same pages always.
        unsafe { set.make_room(heap.mailbox(), world.class, bin, &mut &**world) };
    }

    /// Empties the bins into the spans.
    pub(crate) fn flush(&mut self) {
        let Self { world, heap, bins } = self;
        heap.with(|owner, parts| {
            // SAFETY: the heap's own mailbox, our bins, the same pages always.
            unsafe { parts.set.flush(owner, bins, &mut &**world) };
        });
    }

    /// Moves what others freed into the spans.
    pub(crate) fn receive(&self) {
        self.heap.with(|owner, parts| {
            // SAFETY: the heap's own mailbox, the same pages always.
            unsafe { parts.set.receive(owner, &mut &*self.world) };
        });
    }
}
