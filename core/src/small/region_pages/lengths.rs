//! [`RegionLengths`]: the lengths of granules, pages, spans and blocks of a heap over regions.

use core::ops::RangeInclusive;

use super::super::class::MAX_SMALL_ALIGN;

/// Number of pages in a region, within the bounds on a page's length. One span record for each page suffices.
const PAGES: usize = 1024;
const MAX_PAGE_BYTES: usize = 64 << 10;
/// The longest block that comes from a span is the region's length divided by this, within bounds. Longer blocks are
/// served singly.
const BLOCKS_IN_REGION: usize = 256;
const MAX_BLOCK_BYTES: usize = 4 << 10;
/// Bounds on the minimum number of blocks in a span whose blocks do not fill a page. The minimum is one block for each
/// half MiB of the region: two in a region of a MiB, where the unused part of each class's last span matters.
const SPAN_BLOCKS: RangeInclusive<usize> = 2..=8;
const REGION_BYTES_PER_BLOCK: usize = 512 << 10;
/// In regions below this many bytes, sizes above `FINE_BYTES` are rounded to `COARSE_SPACING` for fewer classes, since
/// each class has a span that is not full.
const FEW_CLASSES_BELOW: usize = 2 << 20;
pub(super) const FINE_BYTES: usize = 128;
const COARSE_SPACING: usize = 64;
/// The granule is the longest span's length divided by this, so that rounding wastes little of a single block.
const GRANULE_SHARE: usize = 64;
const MIN_GRANULE_BYTES: usize = 256;

// A head has one byte, and a granule is never longer than a page.
const _: () = assert!(MAX_PAGE_BYTES / MAX_SMALL_ALIGN < 255);
const _: () = assert!(MAX_PAGE_BYTES / GRANULE_SHARE <= MAX_SMALL_ALIGN);
// The longest span is no longer than the longest page.
const _: () = assert!(*SPAN_BLOCKS.end() * MAX_BLOCK_BYTES <= MAX_PAGE_BYTES);

/// The lengths in a heap whose first region has a given length.
#[derive(Clone, Copy)]
pub(super) struct RegionLengths {
    pub(super) page: usize,
    pub(super) span_blocks: usize,
    pub(super) max_block: usize,
    pub(super) granule: usize,
    /// Sizes above `FINE_BYTES` are rounded to this, a power of two.
    pub(super) spacing: usize,
}

impl RegionLengths {
    pub(super) fn new(bytes: usize) -> Self {
        let power = |bytes: usize| 1 << bytes.max(1).ilog2();
        let page = power(bytes / PAGES).clamp(MAX_SMALL_ALIGN, MAX_PAGE_BYTES);
        let span_blocks =
            power(bytes / REGION_BYTES_PER_BLOCK).clamp(*SPAN_BLOCKS.start(), *SPAN_BLOCKS.end());
        let wanted = span_blocks * power(bytes / BLOCKS_IN_REGION).min(MAX_BLOCK_BYTES);
        let max_span = wanted.max(page);
        let max_block = (max_span / span_blocks).min(MAX_BLOCK_BYTES);
        let granule = (max_span / GRANULE_SHARE).max(MIN_GRANULE_BYTES);
        Self {
            page,
            span_blocks,
            max_block,
            granule,
            spacing: match bytes {
                0..FEW_CLASSES_BELOW => COARSE_SPACING,
                _ => 1,
            },
        }
    }
}
