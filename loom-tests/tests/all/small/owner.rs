//! A thread that owns a heap, doing what the process heap does for a program's thread.

use larder_core::small::{CacheBin, RemoteQueue, SpanSet, ThreadCache, ThreadHeap};

use crate::small::world::{Block, World};

/// A thread with a heap and its cache.
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

    /// What a thread does as its last: it gives its heap up, with what lies in its cache.
    pub(crate) fn park(self) {
        self.touch();
        // SAFETY: our heap, which we use no more.
        unsafe { self.world.pool.park(self.heap) };
    }

    /// The heap's cache, which are ours; the checker sees it if they are not.
    fn cache(&self) -> &'static mut ThreadCache {
        self.touch();
        // SAFETY: HEAP4: of the heap that we own, and not kept beyond a statement.
        unsafe { &mut *self.heap.cache() }
    }

    fn bin(&self) -> &'static mut CacheBin {
        self.cache().of(self.world.class)
    }

    /// Allocates as a program does, and writes the block.
    pub(crate) fn alloc(&mut self) -> Block {
        // SAFETY: what lies in the bin is ours.
        let block = unsafe { CacheBin::pop(self.bin()) };
        if block.is_null() {
            let heap = self.heap;
            // SAFETY: we own it.
            return unsafe {
                heap.with_primary(|remote_queue, set| self.refill_from(remote_queue, set))
            };
        }
        let block = Block(block);
        block.write();
        block
    }

    pub(crate) fn alloc_all<const N: usize>(&mut self) -> [Block; N] {
        std::array::from_fn(|_| self.alloc())
    }

    /// Finds a block for the empty bin; `set` is the one that serves the heap, under its lock.
    pub(crate) fn refill_from(
        &mut self,
        remote_queue: *const RemoteQueue,
        set: &mut SpanSet,
    ) -> Block {
        let mut world = self.world;
        // SAFETY: the set's own remote-free queue, our cache, the same pages always.
        let fresh = unsafe { set.refill(remote_queue, world.class, self.cache(), &mut world) };
        let block = Block(fresh.expect("memory does not end").block.as_ptr());
        block.write();
        block
    }

    /// Frees as a program does: into the bin, which may be emptied first.
    pub(crate) fn free(&mut self, block: Block) {
        block.write();
        // SAFETY: the block is given up.
        if unsafe { CacheBin::push(self.bin(), block.0) } {
            return;
        }
        let heap = self.heap;
        // SAFETY: we own it.
        unsafe { heap.with_primary(|remote_queue, set| self.make_room_in(remote_queue, set)) };
        // SAFETY: the block is given up.
        assert!(unsafe { CacheBin::push(self.bin(), block.0) });
    }

    /// Makes room in the full bin; `set` is the one that serves the heap, under its lock.
    pub(crate) fn make_room_in(&mut self, remote_queue: *const RemoteQueue, set: &mut SpanSet) {
        let mut world = self.world;
        // SAFETY: the set's own remote-free queue, our bin, the same pages always.
        unsafe { set.make_room(remote_queue, world.class, self.bin(), &mut world) };
    }

    /// Empties the cache into the spans.
    pub(crate) fn flush(&mut self) {
        let (mut world, heap) = (self.world, self.heap);
        let flush = |owner, set: &mut SpanSet| {
            // SAFETY: the set's own remote-free queue, our cache, the same pages always.
            unsafe { set.flush(owner, self.cache(), &mut world) };
        };
        // SAFETY: we own it.
        unsafe { heap.with_primary(flush) };
    }

    /// Moves what others freed into the spans.
    pub(crate) fn receive(&self) {
        let receive = |owner, set: &mut SpanSet| {
            // SAFETY: the heap's own remote-free queue, the same pages always.
            unsafe { set.receive(owner, &mut &*self.world) };
        };
        // SAFETY: the set stays where it is.
        unsafe { self.heap.with(receive) };
    }
}
