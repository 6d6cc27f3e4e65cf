//! A thread that owns a heap, doing what the process heap does for a program's thread.

use larder_core::small::{Bin, Bins, Mailbox, SpanSet, ThreadHeap};

use crate::small::world::{Block, World};

/// A thread with a heap and bins.
pub(crate) struct Owner {
    world: &'static World,
    pub(crate) heap: &'static ThreadHeap,
}

impl Owner {
    pub(crate) fn of(world: &'static World, heap: &'static ThreadHeap) -> Self {
        let owner = Self { world, heap };
        owner.touch();
        owner
    }

    /// Touches what one owner at a time may.
    fn touch(&self) {
        self.world.touch(self.heap);
    }

    /// What a thread does as its last: it gives its heap up, with what lies in its bins.
    pub(crate) fn park(self) {
        self.touch();
        self.world.pool.park(self.heap);
    }

    /// The heap's bins, which are ours; the checker sees it if they are not.
    fn bins(&self) -> &'static mut Bins {
        self.touch();
        // SAFETY: H4: of the heap that we own, and not kept beyond a statement.
        unsafe { &mut *self.heap.bins() }
    }

    fn bin(&self) -> &'static mut Bin {
        self.bins().of(self.world.class)
    }

    /// Allocates as a program does, and writes the block.
    pub(crate) fn alloc(&mut self) -> Block {
        // SAFETY: what lies in the bin is ours.
        let block = unsafe { Bin::pop(self.bin()) };
        if block.is_null() {
            let heap = self.heap;
            // SAFETY: we own it.
            return unsafe { heap.with_home(|mailbox, set| self.refill_from(mailbox, set)) };
        }
        let block = Block(block);
        block.write();
        block
    }

    pub(crate) fn alloc_all<const N: usize>(&mut self) -> [Block; N] {
        std::array::from_fn(|_| self.alloc())
    }

    /// Finds a block for the empty bin; `set` is the one that serves the heap, under its lock.
    pub(crate) fn refill_from(&mut self, mailbox: *const Mailbox, set: &mut SpanSet) -> Block {
        let mut world = self.world;
        // SAFETY: the set's own mailbox, our bins, the same pages always.
        let fresh = unsafe { set.refill(mailbox, world.class, self.bins(), &mut world) };
        let block = Block(fresh.expect("memory does not end").block.as_ptr());
        block.write();
        block
    }

    /// Frees as a program does: into the bin, which may be emptied first.
    pub(crate) fn free(&mut self, block: Block) {
        block.write();
        // SAFETY: the block is given up.
        if unsafe { Bin::push(self.bin(), block.0) } {
            return;
        }
        let heap = self.heap;
        // SAFETY: we own it.
        unsafe { heap.with_home(|mailbox, set| self.make_room_in(mailbox, set)) };
        // SAFETY: the block is given up.
        assert!(unsafe { Bin::push(self.bin(), block.0) });
    }

    /// Makes room in the full bin; `set` is the one that serves the heap, under its lock.
    pub(crate) fn make_room_in(&mut self, mailbox: *const Mailbox, set: &mut SpanSet) {
        let mut world = self.world;
        // SAFETY: the set's own mailbox, our bin, the same pages always.
        unsafe { set.make_room(mailbox, world.class, self.bin(), &mut world) };
    }

    /// Empties the bins into the spans.
    pub(crate) fn flush(&mut self) {
        let (mut world, heap) = (self.world, self.heap);
        let flush = |owner, set: &mut SpanSet| {
            // SAFETY: the set's own mailbox, our bins, the same pages always.
            unsafe { set.flush(owner, self.bins(), &mut world) };
        };
        // SAFETY: we own it.
        unsafe { heap.with_home(flush) };
    }

    /// Moves what others freed into the spans.
    pub(crate) fn receive(&self) {
        self.heap.with(|owner, set| {
            // SAFETY: the heap's own mailbox, the same pages always.
            unsafe { set.receive(owner, &mut &*self.world) };
        });
    }
}
