//! The tables of a paged allocator.

use larder_core::Chunk;
use larder_core::pages::{PageConfig, PageTables};

use crate::with_tables::LentTables;

/// Maximum number of blocks and gaps between them.
pub(super) const CHUNKS: usize = 1 << 16;
/// Maximum number of handles of physical memory.
const HANDLES: usize = 1 << 14;
/// Maximum number of mappings of these handles.
const MAPPINGS: usize = 1 << 16;

/// Lends the tables of chunks and of pages.
pub(super) fn lend(
    tables: &mut LentTables,
    config: &PageConfig,
) -> (&'static mut [Chunk], PageTables<'static>) {
    let pages = config.addresses.bytes() / config.page_bytes.max(1);
    let pages = usize::try_from(pages).unwrap_or(usize::MAX);
    let of_pages = PageTables {
        entries: tables.lend_zeroed(pages),
        handles: tables.lend_zeroed(HANDLES.min(pages + 1)),
        mappings: tables.lend_zeroed(MAPPINGS),
    };
    (tables.lend_zeroed(CHUNKS), of_pages)
}
