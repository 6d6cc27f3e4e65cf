//! Marks of sampled live blocks: a lock-free table of addresses.
//!
//! # Invariants
//! * PROF1 a place that is not 0 belongs to the holder of the block at that address: no other
//!   thread empties it.
//! * PROF2 the number that belongs to a place is written by the thread that filled the place,
//!   before any other thread has the block.

use larder_core::sync::{AtomicU64, AtomicUsize, Ordering};

const BUCKETS: usize = 4096;
/// Number of places in a bucket, which fill a cache line.
const PLACES: usize = 8;

#[repr(align(64))]
struct MarkBucket([AtomicUsize; PLACES]);

static ADDRS: [MarkBucket; BUCKETS] =
    [const { MarkBucket([const { AtomicUsize::new(0) }; PLACES]) }; BUCKETS];
static IDS: [[AtomicU64; PLACES]; BUCKETS] =
    [const { [const { AtomicU64::new(0) }; PLACES] }; BUCKETS];

/// Number of filled places. Relaxed: a thread that frees a block learned of it from the thread that
/// marked it.
static FILLED: AtomicUsize = AtomicUsize::new(0);

fn bucket_of(addr: usize) -> usize {
    let spread = (addr as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (spread >> 40) as usize % BUCKETS
}

/// Marks a block that the caller holds. Returns `false` if there is no place.
pub(super) fn set(addr: usize, id: u64) -> bool {
    let bucket = bucket_of(addr);
    for (place, number) in ADDRS[bucket].0.iter().zip(&IDS[bucket]) {
        // Acquire: the thread that emptied the place has read its number.
        let filled = place.compare_exchange(0, addr, Ordering::Acquire, Ordering::Relaxed);
        if filled.is_ok() {
            number.store(id, Ordering::Relaxed);
            FILLED.fetch_add(1, Ordering::Relaxed);
            return true;
        }
    }
    false
}

/// Removes the mark of a block that the caller holds. Returns the block's number if it was marked.
#[inline]
pub(super) fn take(addr: usize) -> Option<u64> {
    if FILLED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let bucket = bucket_of(addr);
    let is_ours = |place: &AtomicUsize| place.load(Ordering::Relaxed) == addr;
    let place = ADDRS[bucket].0.iter().position(is_ours)?;
    let id = IDS[bucket][place].load(Ordering::Relaxed);
    FILLED.fetch_sub(1, Ordering::Relaxed);
    // Release: the number has been read.
    ADDRS[bucket].0[place].store(0, Ordering::Release);
    Some(id)
}
