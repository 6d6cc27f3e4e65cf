//! The placed blocks, by offset, and the search for the lowest gap that is large enough and free for a whole lifetime.
//!
//! The blocks are in buckets of up to 64, and both the blocks of a bucket and the list of buckets are in order of
//! offset. A query walks up from the bottom and skips a bucket in which no block meets the given lifetime; an insertion
//! moves at most one bucket's blocks.

use crate::pack::Lifetime;
use crate::units::Align;

/// Maximum number of blocks in one bucket: few enough to move, enough to compare several at the same time.
pub(super) const BUCKET_ITEMS: usize = 64;

/// Number of buckets that can be skipped, without reading their blocks, at the cost of reading one.
const PASSED_PER_LOOK: u64 = 8;

/// Index that marks the end of the buckets.
const NONE: u32 = u32::MAX;

/// Several placed blocks, adjacent in order of offset.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// First ticks of the lifetimes, and first ticks after them. They are signed, because processors can compare many
    /// signed numbers at once.
    begins: [i32; BUCKET_ITEMS],
    ends: [i32; BUCKET_ITEMS],
    offsets: [u64; BUCKET_ITEMS],
    tops: [u64; BUCKET_ITEMS],
    /// The longest gap between two neighbours in the bucket, valid while its blocks do not overlap.
    longest_gap: u64,
    len: u32,
    next: u32,
}

impl Bucket {
    /// An empty bucket. Entries past its length meet no lifetime.
    pub const VACANT: Self = Self {
        begins: [i32::MAX; BUCKET_ITEMS],
        ends: [i32::MIN; BUCKET_ITEMS],
        offsets: [0; BUCKET_ITEMS],
        tops: [0; BUCKET_ITEMS],
        longest_gap: 0,
        len: 0,
        next: NONE,
    };

    /// Returns whether any of the bucket's blocks is live at a tick of `[begin, end)`. The loop has no branch.
    fn meets(&self, begin: i32, end: i32) -> bool {
        let mut any = false;
        for (&from, &to) in self.begins.iter().zip(&self.ends) {
            any |= (from < end) & (begin < to);
        }
        any
    }

    fn insert(&mut self, at: usize, lifetime: &Lifetime, offset: u64) {
        let len = self.len as usize;
        self.begins.copy_within(at..len, at + 1);
        self.ends.copy_within(at..len, at + 1);
        self.offsets.copy_within(at..len, at + 1);
        self.tops.copy_within(at..len, at + 1);
        self.begins[at] = signed(lifetime.begin);
        self.ends[at] = signed(lifetime.end);
        self.offsets[at] = offset;
        self.tops[at] = offset + lifetime.bytes;
        self.len += 1;
        self.measure();
    }

    fn measure(&mut self) {
        let len = self.len as usize;
        let gaps = self.offsets[..len].iter().skip(1).zip(&self.tops);
        let gaps = gaps.map(|(offset, top)| offset.saturating_sub(*top));
        self.longest_gap = gaps.max().unwrap_or(0);
    }

    fn place_of(&self, lifetime: &Lifetime, offset: u64) -> Option<usize> {
        let offsets = &self.offsets[..self.len as usize];
        if offsets.last().is_none_or(|&last| last < offset) {
            return None;
        }
        let first = offsets.partition_point(|&other| other < offset);
        let same = offsets[first..]
            .iter()
            .take_while(|&&other| other == offset);
        let (begin, end) = (signed(lifetime.begin), signed(lifetime.end));
        let mut places = first..first + same.count();
        places.find(|&place| self.begins[place] == begin && self.ends[place] == end)
    }

    fn remove(&mut self, at: usize) {
        let len = self.len as usize;
        self.begins.copy_within(at + 1..len, at);
        self.ends.copy_within(at + 1..len, at);
        self.offsets.copy_within(at + 1..len, at);
        self.tops.copy_within(at + 1..len, at);
        self.begins[len - 1] = i32::MAX;
        self.ends[len - 1] = i32::MIN;
        self.len -= 1;
        self.measure();
    }

    /// Splits off the upper half into a new bucket.
    fn halve(&mut self) -> Self {
        let half = BUCKET_ITEMS / 2;
        let mut upper = Self::VACANT;
        upper.begins[..half].copy_from_slice(&self.begins[half..]);
        upper.ends[..half].copy_from_slice(&self.ends[half..]);
        upper.offsets[..half].copy_from_slice(&self.offsets[half..]);
        upper.tops[..half].copy_from_slice(&self.tops[half..]);
        upper.len = half as u32;
        upper.next = self.next;
        self.begins[half..].fill(i32::MAX);
        self.ends[half..].fill(i32::MIN);
        self.len = half as u32;
        self.measure();
        upper.measure();
        upper
    }
}

/// The buckets in use, which are the first ones of a table. Bucket 0 is the lowest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buckets {
    used: usize,
    /// Whether all placed blocks meet every queried lifetime. A bucket without a large enough gap is then skipped at
    /// once, and counts as a fraction of a bucket that is read.
    all_meet: bool,
    passed: u64,
    /// A bucket that begins no higher than the last gap found.
    below: usize,
    /// Buckets examined.
    pub(super) work: u64,
}

impl Buckets {
    /// Creates an empty set. `buckets` must not be empty. With `all_meet`, placed blocks meet every queried lifetime
    /// until they are removed.
    pub(super) fn new(buckets: &mut [Bucket], all_meet: bool) -> Self {
        buckets[0] = Bucket::VACANT;
        Self {
            used: 1,
            all_meet,
            passed: 0,
            below: 0,
            work: 0,
        }
    }

    /// Returns the lowest offset at which `bytes` are free over the whole lifetime.
    pub(super) fn lowest_gap(&mut self, buckets: &[Bucket], lifetime: &Lifetime) -> u64 {
        let (begin, end) = (signed(lifetime.begin), signed(lifetime.end));
        let mut cursor = 0;
        let mut at = 0;
        self.below = 0;
        while at != NONE {
            let bucket = &buckets[at as usize];
            let len = bucket.len as usize;
            if self.all_meet && len > 0 && bucket.longest_gap < lifetime.bytes {
                if bucket.offsets[0] >= cursor + lifetime.bytes {
                    return cursor;
                }
                self.below = at as usize;
                cursor = cursor.max(aligned(bucket.tops[len - 1], lifetime.align));
                at = bucket.next;
                self.pass();
                continue;
            }
            self.work += 1;
            // An empty bucket keeps its old offset, but has no block that could meet the lifetime.
            if len > 0 && bucket.offsets[0] >= cursor + lifetime.bytes {
                return cursor;
            }
            if bucket.offsets[0] <= cursor {
                self.below = at as usize;
            }
            if bucket.meets(begin, end) {
                for index in 0..len {
                    if bucket.begins[index] < end && begin < bucket.ends[index] {
                        if bucket.offsets[index] >= cursor + lifetime.bytes {
                            return cursor;
                        }
                        cursor = cursor.max(aligned(bucket.tops[index], lifetime.align));
                    }
                }
            }
            at = bucket.next;
        }
        cursor
    }

    fn pass(&mut self) {
        self.passed += 1;
        self.work += u64::from(self.passed.is_multiple_of(PASSED_PER_LOOK));
    }

    /// Removes a block that was inserted with this offset.
    pub(super) fn remove(&mut self, buckets: &mut [Bucket], lifetime: &Lifetime, offset: u64) {
        let mut at = 0;
        // Blocks with the same offset, which do not meet, may fill more than one bucket.
        while at != NONE {
            let bucket = &mut buckets[at as usize];
            if let Some(place) = bucket.place_of(lifetime, offset) {
                bucket.remove(place);
                return;
            }
            at = bucket.next;
            self.pass();
        }
    }

    /// Inserts a block in order of offset: at the last gap found, or anywhere if there was no query yet. Blocks that
    /// meet must not overlap.
    pub(super) fn insert(&mut self, buckets: &mut [Bucket], lifetime: &Lifetime, offset: u64) {
        let mut at = self.below;
        loop {
            let next = buckets[at].next;
            if next == NONE || buckets[next as usize].offsets[0] > offset {
                break;
            }
            at = next as usize;
            self.pass();
        }
        if buckets[at].len as usize == BUCKET_ITEMS {
            let fresh = self.used;
            self.used += 1;
            buckets[fresh] = buckets[at].halve();
            buckets[at].next = fresh as u32;
            if buckets[fresh].offsets[0] <= offset {
                at = fresh;
            }
        }
        let bucket = &mut buckets[at];
        let len = bucket.len as usize;
        let place = bucket.offsets[..len].partition_point(|&other| other <= offset);
        bucket.insert(place, lifetime, offset);
    }
}

/// Returns a tick as a signed number of the same order.
const fn signed(tick: u32) -> i32 {
    (tick ^ 1 << 31) as i32
}

/// Returns `offset` rounded up. The packer has checked that no offset comes near the end of `u64`.
pub(super) const fn aligned(offset: u64, align: Align) -> u64 {
    let mask = align.bytes() - 1;
    (offset + mask) & !mask
}
