//! How many blocks a bin may hold.

use super::SpanSet;
use crate::small::class::SizeClass;
use crate::small::pages::Pages;
use crate::small::remote::RemoteQueue;
use crate::small::thread_cache::{CacheBin, ThreadCache};

/// A bin's first capacity is its maximum capacity divided by this. The capacity doubles each time the bin becomes empty
/// or full; once the cache has all the bytes that it may have, the capacity grows by this part.
const FIRST_PART: usize = 32;

impl SpanSet {
    /// Returns the next capacity of a bin that is empty or full, if the bytes of the cache do not limit it.
    pub(super) fn next_capacity(&self, class: SizeClass, bin: &CacheBin) -> usize {
        let max = self.policy.bin_blocks(class);
        match self.policy.whole_bins {
            true => max,
            false => (2 * bin.capacity()).clamp(self.part(class), max),
        }
    }

    /// Returns the first capacity of a bin.
    const fn part(&self, class: SizeClass) -> usize {
        self.policy.bin_blocks(class).div_ceil(FIRST_PART)
    }

    /// Returns the maximum number of blocks of a list that are taken for a bin which may hold `capacity`. Lists are taken
    /// as a whole, because a walk would wait for each block in another processor's cache, unless the other bins may hold
    /// twice the bytes that the cache may have. So a cache never has more than twice these bytes and one list.
    pub(super) fn max_taken(
        class: SizeClass,
        capacity: usize,
        cache: &mut ThreadCache,
        pages: &impl Pages,
    ) -> usize {
        match cache.other_bytes(class) <= pages.cache_bytes().saturating_mul(2) {
            true => usize::MAX,
            false => capacity.max(1),
        }
    }

    /// Returns the capacity that a bin may have, at most `wanted`. If the cache has all the bytes that it may have, the
    /// bin grows by what another bin loses. O(1) or O(blocks that the other bin loses).
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    #[inline]
    pub(super) unsafe fn allowed_capacity(
        &mut self,
        owner: *const RemoteQueue,
        class: SizeClass,
        wanted: usize,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) -> usize {
        let max_bytes = pages.cache_bytes();
        if wanted <= cache.room_for(class, max_bytes) || self.policy.whole_bins {
            return wanted;
        }
        let links = self.links();
        if cache.must_shrink(max_bytes) {
            // SAFETY: the cache belongs to the holder of this set, and its blocks have these links.
            let list = unsafe { cache.shrink_next(class, links) };
            // SAFETY: the list came from a bin, so its blocks are free and belong to this set (SLOT1).
            unsafe { self.give_back(owner, list, pages) };
        }
        let (capacity, room) = (cache.of(class).capacity(), cache.room_for(class, max_bytes));
        match room >= capacity {
            true => wanted.min(capacity + self.part(class)).min(room),
            // The cache may hold less than before. The bin shrinks as slowly as the others do.
            false => room.max(capacity - capacity.div_ceil(4)),
        }
    }
}
