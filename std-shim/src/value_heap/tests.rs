//! Heaps beside a plain model: every byte of every block, and the process's memory afterwards.

use std::collections::BTreeMap;

use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;

use super::*;
use crate::process::PROCESS;
use crate::tests::random::Random;
use crate::tests::verbs::ClaimOutcome;

/// Returns the used bytes of all arenas: no other code in this program uses the process's heap.
fn used_bytes() -> u64 {
    PROCESS.arenas().map(|arena| arena.numbers().0).sum()
}

/// Waits for a test's turn: the bytes of the arenas are compared, so one test runs at a time.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Random {
    fn layout(&mut self) -> Layout {
        let bytes = match self.next(20) {
            0 => 0,
            1 => 100_000 + self.next(100_000),
            2 => 131_072 + self.next(3) - 1,
            3 => self.next(1 << 20),
            4..8 => self.next(10_000),
            _ => self.next(400),
        };
        let align = match self.next(10) {
            0 => 1 << self.next(13),
            1 => 1 << (13 + self.next(3)),
            _ => 1 << self.next(5),
        };
        Layout::from_size_align(bytes, align).unwrap()
    }
}

/// Enters a block in the model, which must be as requested and overlap no other; fills it.
fn enter(
    model: &mut BTreeMap<usize, ClaimOutcome>,
    block: NonNull<[u8]>,
    layout: Layout,
    value: u8,
) {
    let addr = block.cast::<u8>().as_ptr().expose_provenance();
    assert!(addr.is_multiple_of(layout.align()) && block.len() == layout.size());
    if layout.size() == 0 {
        return;
    }
    let behind = model.range(addr..).next();
    assert!(behind.is_none_or(|(start, _)| addr + layout.size() <= *start));
    let before = model.range(..addr).next_back();
    assert!(before.is_none_or(|(start, held)| start + held.layout.size() <= addr));
    let start = block.cast::<u8>().as_ptr();
    model.insert(addr, ClaimOutcome::new(start, layout, value));
}

fn take(
    model: &mut BTreeMap<usize, ClaimOutcome>,
    random: &mut Random,
) -> Option<(usize, ClaimOutcome)> {
    let place = random.next(model.len().max(1));
    let addr = *model.keys().nth(place)?;
    let held = model.remove(&addr)?;
    held.check(held.layout.size());
    Some((addr, held))
}

fn at(addr: usize) -> NonNull<u8> {
    NonNull::new(ptr::with_exposed_provenance_mut(addr)).unwrap()
}

fn step(heap: &Heap, model: &mut BTreeMap<usize, ClaimOutcome>, random: &mut Random, value: u8) {
    let layout = random.layout();
    match random.next(10) {
        0..3 => enter(model, heap.allocate(layout).unwrap(), layout, value),
        3..5 => {
            let block = heap.allocate_zeroed(layout).unwrap();
            // SAFETY: given just now, that long, zeroed.
            assert!(unsafe { block.as_ref() }.iter().all(|byte| *byte == 0));
            enter(model, block, layout, value);
        }
        5..7 => {
            if let Some((addr, held)) = take(model, random) {
                // SAFETY: taken out of the model.
                unsafe { heap.deallocate(at(addr), held.layout) };
            }
        }
        _ => {
            if let Some((addr, held)) = take(model, random) {
                resize(heap, model, (addr, held), layout, value);
            }
        }
    }
}

fn resize(
    heap: &Heap,
    model: &mut BTreeMap<usize, ClaimOutcome>,
    (addr, held): (usize, ClaimOutcome),
    new: Layout,
    value: u8,
) {
    let old = held.layout;
    let block = if new.size() < old.size() {
        // SAFETY: taken out of the model; the size falls.
        unsafe { heap.shrink(at(addr), old, new) }
    } else if value.is_multiple_of(2) {
        // SAFETY: taken out of the model; the size does not fall.
        unsafe { heap.grow(at(addr), old, new) }
    } else {
        // SAFETY: taken out of the model; the size does not fall.
        unsafe { heap.grow_zeroed(at(addr), old, new) }
    };
    let block = block.unwrap();
    let kept = old.size().min(new.size());
    let start = block.cast::<u8>().as_ptr();
    ClaimOutcome { start, ..held }.check(kept);
    if new.size() >= old.size() && !value.is_multiple_of(2) {
        // SAFETY: that long, and zeroed behind the old size.
        let all = unsafe { block.as_ref() };
        assert!(all[kept..].iter().all(|byte| *byte == 0));
    }
    enter(model, block, new, value);
}

fn live_bytes(model: &BTreeMap<usize, ClaimOutcome>) -> (u64, u64) {
    let large =
        |held: &&ClaimOutcome| SizeClass::of(held.layout.size(), held.layout.align()).is_none();
    let small = |held: &ClaimOutcome| {
        SizeClass::of(held.layout.size(), held.layout.align()).map_or(0, SizeClass::block_bytes)
    };
    let small = model.values().map(|held| small(held) as u64).sum();
    (small, model.values().filter(large).count() as u64)
}

#[test]
fn random_blocks_are_whole_and_all_memory_comes_back() {
    let _turn = turn();
    for seed in 1..=6 {
        let before = used_bytes();
        let mut heap = Heap::new();
        for round in 0..2 {
            let mut model = BTreeMap::new();
            let mut random = Random(seed * 0x9E37_79B9);
            for number in 0..1500_u32 {
                step(&heap, &mut model, &mut random, (number % 251) as u8);
            }
            for held in model.values() {
                held.check(held.layout.size());
            }
            let stats = heap.stats();
            let (small, larges) = live_bytes(&model);
            assert_eq!(stats.live_bytes - stats.large_bytes, small, "seed {seed}");
            assert_eq!(stats.large_blocks, larges, "seed {seed}");
            assert!(stats.span_bytes >= small && used_bytes() >= before + stats.span_bytes);
            if round == 0 {
                heap.reset();
                assert_eq!(heap.stats(), HeapStats::default());
                assert_eq!(used_bytes(), before, "seed {seed}");
            }
        }
        drop(heap);
        assert_eq!(used_bytes(), before, "seed {seed}");
    }
}

/// Frees every other span's blocks, so that the list of spans loses members in its middle; then
/// frees the rest, or forgets it.
fn free_every_other_span(forget_the_rest: bool) {
    let before = used_bytes();
    let heap = Heap::new();
    let boxes: std::vec::Vec<_> = (0..50_000).map(|n| Box::new_in([n; 8], &heap)).collect();
    let full = heap.stats();
    assert!(full.live_bytes == 50_000 * 32 && full.spans >= 24);
    let (even, odd): (std::vec::Vec<_>, std::vec::Vec<_>) = boxes
        .into_iter()
        .partition(|boxed| (ptr::from_ref(&**boxed).addr() >> 16).is_multiple_of(2));
    drop(even);
    assert!(heap.stats().spans < full.spans);
    assert!(odd.iter().all(|boxed| boxed[0] == boxed[7]));
    if forget_the_rest {
        odd.into_iter().for_each(std::mem::forget);
    } else {
        drop(odd);
        let stats = heap.stats();
        assert!(stats.live_bytes == 0 && stats.spans <= 2, "{stats:?}");
    }
    drop(heap);
    assert_eq!(used_bytes(), before);
}

#[test]
fn spans_go_back_while_the_heap_lives_and_the_others_with_it() {
    let _turn = turn();
    free_every_other_span(false);
    free_every_other_span(true);
}

#[test]
fn a_large_block_grows_and_shrinks_in_place() {
    let _turn = turn();
    let heap = Heap::new();
    let mut bytes: Vec<u8, &Heap> = Vec::with_capacity_in(300_000, &heap);
    bytes.extend((0..300_000_u32).map(|n| n as u8));
    let start = bytes.as_ptr();
    bytes.reserve_exact(1_000_000);
    assert_eq!(bytes.as_ptr(), start);
    let grown = heap.stats().large_bytes;
    bytes.shrink_to_fit();
    assert_eq!(bytes.as_ptr(), start);
    assert!(heap.stats().large_bytes < grown && heap.stats().large_blocks == 1);
    assert!(bytes.iter().enumerate().all(|(n, byte)| *byte == n as u8));
}

#[test]
fn a_heap_moves_to_another_thread_with_its_blocks_forgotten() {
    let _turn = turn();
    let before = used_bytes();
    let heap = Heap::new();
    for n in 0..1000 {
        std::mem::forget(Box::new_in([n; 100], &heap));
    }
    let thread = std::thread::spawn(move || {
        let text = Box::new_in(7, &heap);
        assert_eq!(*text, 7);
        drop(text);
        heap.stats().live_bytes
    });
    assert!(thread.join().unwrap() >= 400_000);
    assert_eq!(used_bytes(), before);
}

#[test]
fn maps_and_nested_collections_live_in_a_heap() {
    let _turn = turn();
    let heap = Heap::new();
    let mut map = hashbrown::HashMap::new_in(&heap);
    for n in 0..20_000_u64 {
        let mut list = Vec::new_in(&heap);
        list.extend(n..n + n % 7);
        map.insert(n, list);
    }
    map.retain(|n, _| n % 3 == 0);
    assert!(
        map.iter()
            .all(|(n, list)| list.iter().copied().eq(*n..*n + *n % 7))
    );
    drop(map);
    assert_eq!(heap.stats().live_bytes, 0);
}

#[test]
fn what_cannot_be_had_is_an_error() {
    let _turn = turn();
    let heap = Heap::new();
    let huge = Layout::from_size_align(isize::MAX as usize - 4096, 1).unwrap();
    assert!((&heap).allocate(huge).is_err());
    assert_eq!(heap.stats(), HeapStats::default());
}
