//! A thread that owns a heap, with the calls that the process heap makes for a program's thread.

use larder_core::small::{CacheBin, RemoteQueue, SpanSet, ThreadCache, ThreadHeap};

use crate::small::world::{Block, World};

/// The owner of a heap and its cache.
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

    /// Touches the heap's cell, which only one owner at a time may touch.
    fn touch(&self) {
        self.world.touch(self.heap);
    }

    /// Parks the heap with its cache, as a thread does at its end.
    pub(crate) fn park(self) {
        self.touch();
        // SAFETY: our heap, which is not used afterwards.
        unsafe { self.world.pool.park(self.heap) };
    }

    /// Returns the heap's cache. Loom reports a thread that is not its owner.
    fn cache(&self) -> &'static mut ThreadCache {
        self.touch();
        // SAFETY: the cache of our own heap (HEAP4), used within one statement.
        unsafe { &mut *self.heap.cache() }
    }

    fn bin(&self) -> &'static mut CacheBin {
        self.cache().of(self.world.class)
    }

    /// Allocates and writes a block, as a program does.
    pub(crate) fn alloc(&mut self) -> Block {
        // SAFETY: the blocks in the bin are ours.
        let block = unsafe { CacheBin::pop(self.bin()) };
        if block.is_null() {
            let heap = self.heap;
            // SAFETY: we own the heap.
            return unsafe {
                (self.world.pool).with_set(heap, |queue, set| self.refill_from(queue, set))
            };
        }
        let block = Block(block);
        block.write();
        block
    }

    pub(crate) fn alloc_all<const N: usize>(&mut self) -> [Block; N] {
        std::array::from_fn(|_| self.alloc())
    }

    /// Refills the empty bin and returns a block. `set` serves the heap and is locked.
    pub(crate) fn refill_from(
        &mut self,
        remote_queue: *const RemoteQueue,
        set: &mut SpanSet,
    ) -> Block {
        let mut world = self.world;
        // SAFETY: the set's own remote-free queue, our cache, with the same pages in every call.
        let fresh = unsafe { set.refill(remote_queue, world.class, self.cache(), &mut world) };
        let block = Block(fresh.expect("memory does not end").block.as_ptr());
        block.write();
        block
    }

    /// Frees a block as a program does: into the bin, in which room is made first if it is full.
    pub(crate) fn free(&mut self, block: Block) {
        block.write();
        // SAFETY: the caller gives up the block.
        if unsafe { CacheBin::push(self.bin(), block.0) } {
            return;
        }
        let heap = self.heap;
        // SAFETY: we own the heap.
        unsafe { (self.world.pool).with_set(heap, |queue, set| self.make_room_in(queue, set)) };
        // SAFETY: the caller gives up the block.
        assert!(unsafe { CacheBin::push(self.bin(), block.0) });
    }

    /// Makes room in the full bin. `set` serves the heap and is locked.
    pub(crate) fn make_room_in(&mut self, remote_queue: *const RemoteQueue, set: &mut SpanSet) {
        let mut world = self.world;
        // SAFETY: the set's own remote-free queue, our cache, with the same pages in every call.
        unsafe { set.make_room(remote_queue, world.class, self.cache(), &mut world) };
    }

    /// Allocates and frees two blocks, which no other thread may have.
    pub(crate) fn use_two(&mut self) {
        let [first, second] = self.alloc_all();
        assert!(first != second, "a block was given twice");
        self.free(first);
        self.free(second);
    }

    pub(crate) fn flush(&mut self) {
        let (mut world, heap) = (self.world, self.heap);
        let flush = |owner, set: &mut SpanSet| {
            // SAFETY: the set's own remote-free queue, our cache, with the same pages in every call.
            unsafe { set.flush(owner, self.cache(), &mut world) };
        };
        // SAFETY: we own the heap.
        unsafe { self.world.pool.with_set(heap, flush) };
    }

    /// Receives the blocks that other threads freed.
    pub(crate) fn receive(&self) {
        let receive = |owner, set: &mut SpanSet| {
            // SAFETY: the heap's own remote-free queue, with the same pages in every call.
            unsafe { set.receive(owner, &mut &*self.world) };
        };
        // SAFETY: the heap's set stays in place.
        unsafe { self.heap.with(receive) };
    }
}
