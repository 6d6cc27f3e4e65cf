//! Physical memory: the pages touched, and those released to the system.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::HEAP;
use crate::common::{Held, KIB, MIB, Random, churn, resident_bytes};
use crate::forks::in_a_child;
use crate::known::{self, mappings, more_than};
use crate::runner::Case;

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "zeroed memory fresh from the system is not touched",
        zeroed_is_not_touched,
    ),
    Case::new("allocated memory is not touched", allocated_is_not_touched),
    Case::new(
        "zeroed memory that was used and trimmed is not touched",
        trimmed_is_not_touched,
    ),
    Case::new("trim gives the memory of large blocks back", || {
        peak_goes_back(&[MIB, 300 * KIB]);
    }),
    Case::new("trim gives the memory of small blocks back", || {
        peak_goes_back(&[24, 800, 9000]);
    }),
    Case::new(
        "trim gives back what lies between blocks that stay",
        gaps_go_back,
    ),
    Case::new(
        "trim while other threads allocate leaves their blocks alone",
        trim_beside_others,
    ),
    Case::new(
        "vectors that grow past each other are never in memory twice",
        growing_moves_pages,
    ),
    Case::new(
        "vectors grow whole that the program has advised or locked in part",
        growing_with_advice,
    ),
    Case::new(
        "threads grow vectors past each other, and children of forks go on",
        growing_beside_others,
    ),
    Case::new(
        "dumps contain what is used, and not what is only reserved",
        dumps_contain_what_is_used,
    ),
    Case::new(
        "memory of one size serves the next without a tick",
        one_size_serves_the_next,
    )
    .with(&[&[("LARDER_PURGE_AFTER", "never")]]),
    Case::new(
        "small blocks have no huge pages where memory comes first",
        no_huge_pages_for_small_blocks,
    )
    .with(&[&[("LARDER_MODE", "memory")]]),
];

fn zeroed_is_not_touched() {
    let layout = Layout::from_size_align(512 * MIB, 16).unwrap();
    let before = resident_bytes();
    // SAFETY: the layout is not empty.
    let block = unsafe { HEAP.alloc_zeroed(layout) };
    assert!(!block.is_null());
    let more = more_than(before);
    assert!(more < 4 * MIB as u64, "{more}");
    // SAFETY: our block, of this length, zeroed.
    let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
    assert!(bytes.iter().step_by(1021).all(|&byte| byte == 0));
    // SAFETY: our block, with this layout.
    unsafe { HEAP.dealloc(block, layout) };
}

fn allocated_is_not_touched() {
    let before = resident_bytes();
    let held: Vec<Vec<u8>> = (0..8).map(|_| Vec::with_capacity(64 * MIB)).collect();
    let more = more_than(before);
    assert!(more < 4 * MIB as u64, "{more}");
    drop(held);
}

fn trimmed_is_not_touched() {
    let dirty = vec![7u8; 256 * MIB];
    drop(dirty);
    let given = HEAP.trim();
    assert!(given >= 256 * MIB as u64, "{given}");
    let before = resident_bytes();
    let zeroed = vec![0u8; 256 * MIB];
    let more = more_than(before);
    assert!(more < 4 * MIB as u64, "{more}");
    assert!(zeroed.iter().step_by(1021).all(|&byte| byte == 0));
}

/// Allocates 256 MiB in blocks of these sizes, frees them all, and trims.
fn peak_goes_back(sizes: &[usize]) {
    const PEAK: usize = 256 * MIB;
    let each = PEAK / sizes.len();
    let count: usize = sizes.iter().map(|size| each / size).sum();
    // Written first, so that the list is not part of the peak.
    let mut blocks = vec![(std::ptr::null_mut(), 0); count];
    HEAP.trim();
    let before = resident_bytes();
    let mut places = blocks.iter_mut();
    for &size in sizes {
        for place in places.by_ref().take(each / size) {
            *place = (known::make(size), size);
        }
    }
    let peak = more_than(before);
    assert!(peak > PEAK as u64 * 9 / 10, "{peak}");
    // Frees in an order that mixes the spans.
    let step = 7919;
    assert!(!count.is_multiple_of(step));
    for at in 0..count {
        let (block, size) = blocks[at * step % count];
        known::free(block, size);
    }
    let given = HEAP.trim();
    let left = more_than(before);
    assert!(
        left <= peak / 20,
        "{left} of {peak} are left; trim says {given}"
    );
}

fn gaps_go_back() {
    let mut random = Random::new(14);
    let before = resident_bytes();
    let mut all: Vec<Option<Held>> = (0..256)
        .map(|_| {
            let layout = Layout::from_size_align(MIB + random.next(8000), 8).unwrap();
            Some(Held::new(layout, random.next(255) as u8 + 1, false))
        })
        .collect();
    let peak = more_than(before);
    for (number, place) in all.iter_mut().enumerate() {
        if number % 16 != 0 {
            *place = None;
        }
    }
    HEAP.trim();
    let left = more_than(before);
    assert!(left < peak / 8, "{left} of {peak}");
    assert!(all.iter().flatten().all(Held::is_whole));
    // The memory between them can be allocated and written again, and reads as zero if zeroed
    // memory is requested.
    let zeroed = Layout::from_size_align(MIB, 8).unwrap();
    let more: Vec<Held> = (0..200).map(|_| Held::new(zeroed, 3, true)).collect();
    assert!(all.iter().flatten().chain(&more).all(Held::is_whole));
}

/// Returns whether the kernel can move pages and leave their former range mapped (Linux 5.7).
fn kernel_moves_pages() -> bool {
    const BYTES: usize = 256 * KIB;
    let usable = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * BYTES, usable, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let to = start.wrapping_byte_add(BYTES);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the two halves of the mapping.
    let moved = unsafe { libc::mremap(start, BYTES, BYTES, flags, to) };
    // SAFETY: our mapping, no longer used.
    unsafe { libc::munmap(start, 2 * BYTES) };
    moved == to
}

/// Extends the vectors in turn, so that none has free memory after it for long.
fn grow(vectors: &mut [Vec<u8>], bytes: usize, mut look: impl FnMut()) {
    let piece: Vec<u8> = (0..64 * KIB).map(|number| (number % 251) as u8).collect();
    while vectors.iter().any(|vector| vector.len() < bytes) {
        for vector in &mut *vectors {
            vector.extend_from_slice(&piece);
            look();
        }
    }
    for vector in vectors {
        assert!(vector.chunks(piece.len()).all(|found| found == piece));
    }
}

fn growing_moves_pages() {
    if !kernel_moves_pages() {
        return;
    }
    let before = resident_bytes();
    let mut max = 0;
    let mut vectors = vec![Vec::new(); 2];
    grow(&mut vectors, 128 * MIB, || {
        max = max.max(more_than(before));
    });
    let live = 2 * 128 * MIB as u64;
    assert!(max < live + live / 6, "{max} for {live}");
}

fn growing_with_advice() {
    for part in 0..3 {
        let mut vectors = vec![Vec::new(); 2];
        grow(&mut vectors, 6 * MIB, || {});
        for vector in &vectors {
            let start = vector.as_ptr().addr() + part * 2 * MIB;
            let place = vector.as_ptr().with_addr(start.next_multiple_of(64 * KIB));
            // SAFETY: inside the vector; the advice does not change its contents.
            unsafe { libc::madvise(place.cast_mut().cast(), MIB, libc::MADV_DONTDUMP) };
            // SAFETY: inside the vector; a lock does not change its contents, and may be refused.
            unsafe { libc::mlock(place.wrapping_add(MIB / 2).cast(), MIB / 4) };
        }
        grow(&mut vectors, 40 * MIB, || {});
    }
}

fn growing_beside_others() {
    let threads: Vec<_> = (0..3)
        .map(|_| {
            thread::spawn(|| {
                for _ in 0..6 {
                    grow(&mut vec![Vec::new(); 2], 12 * MIB, || {});
                }
            })
        })
        .collect();
    for _ in 0..20 {
        in_a_child(|| grow(&mut vec![Vec::new(); 2], 9 * MIB, || {}));
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

fn trim_beside_others() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static ROUNDS: AtomicUsize = AtomicUsize::new(0);
    let kept: Vec<Held> = (1..200)
        .map(|seed| Held::random(&mut Random::new(seed)))
        .collect();
    let before = resident_bytes();
    let others: Vec<_> = (1..4)
        .map(|seed| thread::spawn(move || churn(seed, &STOP, &ROUNDS)))
        .collect();
    let mut trims = 0;
    while ROUNDS.load(Ordering::Relaxed) < 600 || trims < 50 {
        HEAP.trim();
        trims += 1;
        thread::sleep(Duration::from_millis(1));
    }
    // A peak whose memory is released while the other threads run.
    let peak = vec![1u8; 256 * MIB];
    let max = more_than(before);
    drop(peak);
    HEAP.trim();
    let left = more_than(before);
    STOP.store(true, Ordering::Relaxed);
    for other in others {
        other.join().unwrap();
    }
    assert!(max - left > 128 * MIB as u64, "{left} of {max}");
    assert!(kept.iter().all(Held::is_whole));
}

fn assert_dumped(place: usize, is_dumped: bool) {
    let mut dumped = mappings();
    dumped.retain(|mapping| !mapping.has("dd"));
    let contains = dumped.iter().any(|mapping| mapping.range.contains(&place));
    assert_eq!(contains, is_dumped);
    let bytes: usize = dumped.iter().map(|mapping| mapping.range.len()).sum();
    // The limit allows for the rest of the program, with ranges that the C library's heap reserved.
    assert!(bytes < 1024 * MIB, "{bytes} bytes");
}

fn dumps_contain_what_is_used() {
    let blocks: Vec<_> = (0..40).map(|_| vec![1_u8; MIB]).collect();
    for block in &blocks {
        assert_dumped(block.as_ptr().addr() + MIB / 2, true);
    }
    let last = blocks
        .iter()
        .map(|block| block.as_ptr().addr())
        .max()
        .unwrap();
    drop(blocks);
    // A trim leaves the end of the range only reserved.
    HEAP.trim();
    assert_dumped(last + MIB / 2, false);
}

fn mix<T>(random: &mut Random, all: &mut [T]) {
    for at in (1..all.len()).rev() {
        all.swap(at, random.next(at + 1));
    }
}

fn one_size_serves_the_next() {
    let total = 64 * MIB;
    let mut random = Random::new(5);
    let mut sizes: Vec<usize> = (0..50).map(|n| 64 + n * n * 8).collect();
    mix(&mut random, &mut sizes);
    for size in sizes {
        let mut blocks: Vec<Box<[u8]>> = (0..total / size).map(|_| vec![1; size].into()).collect();
        mix(&mut random, &mut blocks);
    }
    let held = HEAP.stats().committed_bytes;
    // The limit allows for the blocks, a pointer to each, and memory of one size that cannot serve
    // the next size.
    assert!(
        held < 150 << 20,
        "{held} bytes for 64 MiB and their pointers"
    );
}

/// The heap must refuse huge pages explicitly, since the system would create them by itself.
fn no_huge_pages_for_small_blocks() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let block = Box::new([1_u64; 8]);
    let place = (&raw const *block).addr();
    let mut mappings = mappings().into_iter();
    let mapping = mappings.find(|mapping| mapping.range.contains(&place));
    let mapping = mapping.unwrap();
    assert!(mapping.has("nh"), "{}", mapping.flags);
}
