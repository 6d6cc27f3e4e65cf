//! Memory in which loom checks every access to a free block or a span record.
//!
//! A block starts with a [`Slot`] of loom's cells, so loom reports a thread that writes a block, or follows its link,
//! without the right to do so. A released span's record and slots are overwritten with new ones, so loom reports a
//! thread that accesses them without having seen the release.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::{self, NonNull};
use std::sync::Mutex;

use larder_core::small::{
    CacheBin, ClassUsage, HeapPool, Links, MAX_SMALL_ALIGN, Pages, Policy, RemoteQueue, SizeClass,
    Slot, Span, SpanMemory, SpanSet, ThreadCache, ThreadHeap,
};
use loom::cell::UnsafeCell;

use crate::small::owner::Owner;

/// Bytes of a block that holds only a slot.
pub(crate) const SLOT_BYTES: usize = 32;
/// Bytes of a block that fills a bin alone, so that a few frees reach the transfer cache.
pub(crate) const BIN_BYTES: usize = 32 << 10;

const _: () = assert!(size_of::<Slot>() <= SLOT_BYTES);

/// A block of the program.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Block(pub(crate) *mut u8);

// SAFETY: a block has one holder at a time; loom checks its contents.
unsafe impl Send for Block {}

impl Block {
    /// Writes the block, as a program does.
    pub(crate) fn write(&self) {
        // SAFETY: the block is the program's and starts with a slot.
        unsafe { Slot::set_next(self.0.cast(), ptr::null_mut()) }
    }
}

/// A span of the world.
struct Made {
    memory: SpanMemory,
    layout: Layout,
    class: SizeClass,
    released: bool,
}

impl Made {
    fn holds(&self, block: *mut u8) -> bool {
        let offset = block.addr().wrapping_sub(self.memory.base.addr());
        !self.released && offset < self.layout.size()
    }

    fn slots(&self) -> impl Iterator<Item = *mut Slot> {
        let base = self.memory.base;
        (0..self.layout.size())
            .step_by(self.class.block_bytes())
            .map(move |offset| base.wrapping_add(offset).cast())
    }
}

/// The memory and heaps of one run of a model.
pub(crate) struct World {
    blocks: usize,
    /// Loom does not see this lock, so it orders nothing.
    spans: Mutex<Vec<Made>>,
    pub(crate) heaps: Vec<ThreadHeap>,
    /// A cell for each heap, which only the heap's owner touches (HEAP2).
    pub(crate) owned: Vec<UnsafeCell<()>>,
    pub(crate) pool: HeapPool,
    /// The queue of released spans, in which no span may be announced.
    graveyard: RemoteQueue,
    pub(crate) class: SizeClass,
}

// SAFETY: the pointers lead to records and blocks whose every access loom checks.
unsafe impl Sync for World {}
// SAFETY: the pointers lead to records and blocks whose every access loom checks.
unsafe impl Send for World {}

/// Explores a model of `heaps` heaps and one class, with `blocks` blocks to a span. The model frees every block; all
/// spans must then be released.
pub(crate) fn model(
    heaps: usize,
    block_bytes: usize,
    blocks: usize,
    run: impl Fn(&'static World) + Send + Sync + 'static,
) {
    loom::model(move || {
        run_once(heaps, 0, block_bytes, blocks, &run);
    });
}

/// Explores a model with `secondaries` secondary heaps after the primary ones.
pub(crate) fn model_with_secondaries(
    heaps: usize,
    secondaries: usize,
    block_bytes: usize,
    blocks: usize,
    run: impl Fn(&'static World) + Send + Sync + 'static,
) {
    loom::model(move || run_once(heaps, secondaries, block_bytes, blocks, &run));
}

fn run_once(
    heaps: usize,
    secondaries: usize,
    block_bytes: usize,
    blocks: usize,
    run: impl Fn(&'static World),
) {
    let all = heaps + secondaries;
    // Prepared in place: a model's stack has 32 KiB, of which a heap takes a third.
    let mut made: Vec<_> = (0..all).map(|_| ThreadHeap::default()).collect();
    for heap in made.iter_mut().skip(heaps) {
        heap.prepare(Policy::BALANCED, true);
    }
    let world = Box::into_raw(Box::new(World {
        blocks,
        spans: Mutex::new(Vec::new()),
        heaps: made,
        owned: (0..all).map(|_| UnsafeCell::new(())).collect(),
        pool: HeapPool::new(),
        graveyard: RemoteQueue::new(),
        class: SizeClass::of(block_bytes, 8).unwrap(),
    }));
    // SAFETY: the world lives until the end of this run, and all threads end before.
    let shared: &'static World = unsafe { &*world };
    run(shared);
    shared.check_end();
    // SAFETY: the box made above; all threads have been joined.
    drop(unsafe { Box::from_raw(world) });
}

impl World {
    pub(crate) fn heap(&'static self, number: usize) -> &'static ThreadHeap {
        &self.heaps[number]
    }

    /// Enters a new heap into the pool. Returns its owner.
    pub(crate) fn owner(&'static self, number: usize) -> Owner {
        // SAFETY: the heap is new, and this thread's own.
        unsafe { self.pool.enter(self.heap(number)) };
        Owner::of(self, self.heap(number))
    }

    /// Enters a new secondary heap into the pool. Returns its owner.
    pub(crate) fn new_secondary(&'static self, number: usize) -> Owner {
        // SAFETY: the heap is new, and this thread's own.
        let secondary = unsafe { self.pool.enter_secondary(self.heap(number)) };
        Owner::of(self, secondary.expect("there is a primary"))
    }

    pub(crate) fn adopt_secondary(&'static self) -> Option<Owner> {
        let heap = self.pool.adopt_secondary()?;
        Some(Owner::of(self, heap))
    }

    pub(crate) fn adopt(&'static self) -> Option<Owner> {
        let heap = self.pool.adopt()?;
        Some(Owner::of(self, heap))
    }

    /// Touches the cell of a heap, which only the heap's owner may touch.
    pub(crate) fn touch(&self, heap: &ThreadHeap) {
        let number = self.heaps.iter().position(|known| ptr::eq(known, heap));
        self.owned[number.unwrap()].with_mut(|_| ());
    }

    /// Trims every heap, as does a program that needs the memory elsewhere.
    pub(crate) fn trim(&'static self) {
        self.pool.for_each(|heap| self.trim_heap(heap));
    }

    /// Flushes a heap's cache, if the heap has no owner.
    pub(crate) fn flush_idle(&'static self, heap: &ThreadHeap) {
        let flush = |owner, set: &mut SpanSet, cache: &mut ThreadCache| {
            self.touch(heap);
            // SAFETY: the set's own remote-free queue and its cache (HEAP4), with the same pages in every call.
            unsafe { set.flush(owner, cache, &mut &*self) };
        };
        // SAFETY: the heap's set and cache stay in place.
        unsafe { heap.with_idle_cache(true, flush) };
    }

    fn trim_heap(&'static self, heap: &ThreadHeap) {
        self.flush_idle(heap);
        let trim = |owner, set: &mut SpanSet| {
            // SAFETY: the heap's own remote-free queue, with the same pages in every call.
            unsafe { set.trim(owner, &mut { usize::MAX }, &mut &*self) };
            assert!(set.is_sound());
        };
        // SAFETY: the heap's set stays in place.
        unsafe { heap.with(trim) };
    }

    pub(crate) fn usage(&'static self, heap: &ThreadHeap) -> ClassUsage {
        // SAFETY: the set is only read.
        unsafe { heap.with(|_, set| set.usage(self.class, self.span_bytes(self.class))) }
    }

    pub(crate) fn live_spans(&self) -> usize {
        let spans = self.spans.lock().unwrap();
        spans.iter().filter(|made| !made.released).count()
    }

    /// Frees blocks from a thread without a heap, each in a chain of its own.
    pub(crate) fn free_singly(&'static self, blocks: impl IntoIterator<Item = Block>) {
        let mut set = SpanSet::default();
        for block in blocks {
            block.write();
            // SAFETY: the caller gives up the block; the set has no spans, so it has no remote-free queue.
            unsafe { set.free(ptr::null(), block.0, &mut &*self) };
        }
    }

    /// Frees blocks from a thread without a heap in one chain, in the order given.
    pub(crate) fn free_together(&'static self, blocks: impl IntoIterator<Item = Block>) {
        let (mut set, mut cache) = (SpanSet::default(), ThreadCache::new());
        for block in blocks {
            put(self, &mut set, ptr::null(), &mut cache, block);
        }
        // SAFETY: the caller gave up the blocks; the set has no spans, so it has no remote-free queue.
        unsafe { set.flush(ptr::null(), &mut cache, &mut &*self) };
    }

    /// Returns every span that is announced to a heap.
    pub(crate) fn announced(&self, heap: &ThreadHeap) -> Vec<*mut Span> {
        let mut all = Vec::new();
        // SAFETY: the spans are announced again below.
        let mut span = unsafe { heap.remote_queue().take() };
        while !span.is_null() {
            assert!(!all.contains(&span), "a span was announced twice");
            all.push(span);
            // SAFETY: the span is from the queue, and its list was not emptied.
            span = unsafe { Span::queue_link(span) };
        }
        for span in &all {
            // SAFETY: the span was announced, so its list is not empty, and it is in no queue now.
            unsafe { heap.remote_queue().push(*span) };
        }
        all
    }

    /// Trims all heaps and checks that no block, span or announcement is left.
    fn check_end(&'static self) {
        for heap in &self.heaps {
            self.trim_heap(heap);
        }
        for heap in &self.heaps {
            // Another heap's trim may have freed blocks of this heap.
            self.trim_heap(heap);
            assert_eq!(self.usage(heap), ClassUsage::default(), "a block was lost");
            // SAFETY: all threads have ended.
            let announced = unsafe { heap.remote_queue().take() };
            assert!(announced.is_null(), "a released span was announced");
        }
        assert_eq!(self.live_spans(), 0, "a span was lost");
        // SAFETY: all threads have ended.
        let buried = unsafe { self.graveyard.take() };
        assert!(buried.is_null(), "a released span got a block");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for made in self.spans.get_mut().unwrap() {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(made.memory.base, made.layout) };
            // SAFETY: from a box; no thread is left to read it.
            drop(unsafe { Box::from_raw(made.memory.record) });
        }
    }
}

// SAFETY: memory is granted once and kept until the world ends; records are found by address.
unsafe impl Pages for &'static World {
    fn span_bytes(&self, class: SizeClass) -> usize {
        class.block_bytes() * self.blocks
    }

    fn alloc_span(&mut self, class: SizeClass) -> Option<SpanMemory> {
        let bytes = Pages::span_bytes(self, class);
        let layout = Layout::from_size_align(bytes, MAX_SMALL_ALIGN).unwrap();
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc(layout) };
        assert!(!base.is_null());
        let mut memory = SpanMemory {
            record: ptr::null_mut(),
            base,
            clean: false,
        };
        let record = Span::new(&memory, bytes, self.class, ptr::null(), Links::PLAIN);
        memory.record = Box::into_raw(Box::new(record));
        let made = Made {
            memory,
            layout,
            class: self.class,
            released: false,
        };
        for slot in made.slots() {
            // SAFETY: fresh memory with room for a slot.
            unsafe { slot.write(Slot::unlinked()) };
        }
        self.spans.lock().unwrap().push(made);
        Some(memory)
    }

    unsafe fn free_span(&mut self, span: *mut Span) {
        let mut spans = self.spans.lock().unwrap();
        let made = spans
            .iter_mut()
            .find(|made| made.memory.record == span && !made.released)
            .expect("a span was released twice");
        // SAFETY: the record is alive. Loom reports writes of the link that this thread has not seen.
        let _ = unsafe { Span::queue_link(span) };
        let buried = Span::new(
            &made.memory,
            made.layout.size(),
            made.class,
            &raw const self.graveyard,
            Links::PLAIN,
        );
        // SAFETY: no thread can reach the record any more (SPAN5); loom reports one that does.
        unsafe { span.write(buried) };
        for slot in made.slots() {
            // SAFETY: every slot is the span's. Loom reports a thread that still uses it.
            unsafe { Slot::set_next(slot, ptr::null_mut()) };
            // SAFETY: every slot is the span's. Loom reports a thread that uses it from now on.
            unsafe { slot.write(Slot::unlinked()) };
        }
        made.released = true;
    }

    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        let spans = self.spans.lock().unwrap();
        let made = spans.iter().find(|made| made.holds(block));
        NonNull::new(made.expect("a block of no span was freed").memory.record)
    }

    fn alloc_block(&mut self, _: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    unsafe fn free_block(&mut self, _: *mut u8) {}
}

/// Puts a block into a bin of the thread that holds `set`.
fn put(
    world: &'static World,
    set: &mut SpanSet,
    owner: *const RemoteQueue,
    cache: &mut ThreadCache,
    block: Block,
) {
    block.write();
    // SAFETY: the caller gives up the block.
    if !unsafe { CacheBin::push(cache.of(world.class), block.0) } {
        // SAFETY: the cache belongs to this set, and `owner` is its remote-free queue.
        unsafe { set.make_room(owner, world.class, cache, &mut &*world) };
        // SAFETY: the caller gives up the block.
        assert!(unsafe { CacheBin::push(cache.of(world.class), block.0) });
    }
}
