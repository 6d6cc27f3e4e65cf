//! The tables of a paged allocator, owned.

use larder_core::Chunk;
use larder_core::paged::{Handle, Mapping, PageTables, PagedBfc, PagedConfig, Place};

/// Blocks and gaps between them, at most.
pub(super) const CHUNKS: usize = 1 << 16;
/// Pieces of physical memory, at most.
const HANDLES: usize = 1 << 14;
/// Places where they are mapped, at most.
const MAPPINGS: usize = 1 << 16;

/// Lends new tables for as long as the program runs, or until [`take_back`].
pub(super) fn lend(config: &PagedConfig) -> (&'static mut [Chunk], PageTables<'static>) {
    let pages = config.addresses.bytes() / config.page_bytes.max(1);
    let pages = usize::try_from(pages).unwrap_or(usize::MAX);
    let tables = PageTables {
        places: vec![Place::EMPTY; pages].leak(),
        handles: vec![Handle::VACANT; HANDLES.min(pages + 1)].leak(),
        mappings: vec![Mapping::VACANT; MAPPINGS].leak(),
    };
    (lend_chunks(CHUNKS), tables)
}

/// Lends records of chunks, until [`free`].
pub(super) fn lend_chunks(count: usize) -> &'static mut [Chunk] {
    vec![Chunk::VACANT; count].leak()
}

/// Frees the tables of an allocator that is over.
pub(super) fn take_back(paged: PagedBfc<'static>) {
    let (chunks, tables) = paged.into_tables();
    free(chunks);
    free(tables.places);
    free(tables.handles);
    free(tables.mappings);
}

/// Frees a table that was leaked as a boxed slice, or an empty one.
pub(crate) fn free<T>(table: &'static mut [T]) {
    // SAFETY: each table of ours is a leaked boxed slice, or empty and so without memory of its own;
    // and this is the only reference to it.
    drop(unsafe { Box::from_raw(table) });
}
