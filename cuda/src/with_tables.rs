//! [`WithTables`]: a value together with the tables that it borrows.
//!
//! Best fit and steps borrow their tables, so that programs without a heap can lend static tables. Here the
//! tables are zeroed memory that is freed with the value. Each large table has its own mapping: a heap that
//! reuses memory would have to zero all of it, and would keep it.
//!
//! # Invariants
//! * OWN1 each table is separate memory, lent once, to the value in the same [`WithTables`].
//! * OWN2 the value is dropped before its tables, and nothing that borrows them leaves the value. So code that
//!   holds the value by `&mut`, even under the lock of a [`Shared`], puts no other value in its place.

use core::convert::Infallible;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use larder_core::{ConfigError, RegionConfig, RegionPool, Shared, Source, Zeroed};

use crate::lock_wait::Yield;

/// A value, and the tables it borrows.
pub(crate) struct WithTables<A> {
    /// Declared before the tables, so that it is dropped first (OWN2).
    value: A,
    _tables: LentTables,
}

/// The tables lent to one value.
#[derive(Default)]
pub(crate) struct LentTables(Vec<OwnedTable>);

/// The memory of one table.
struct OwnedTable {
    start: NonNull<u8>,
    layout: Layout,
    is_mapping: bool,
}

// SAFETY: only its drop touches the memory (OWN2), on any thread.
unsafe impl Send for OwnedTable {}
// SAFETY: a shared reference gives no access to the memory.
unsafe impl Sync for OwnedTable {}

impl OwnedTable {
    /// Allocates zeroed memory. Returns `None` if the host has no memory, or the layout is empty.
    fn zeroed(layout: Layout) -> Option<Self> {
        if layout.size() == 0 {
            return None;
        }
        let table = |start, is_mapping| Self {
            start,
            layout,
            is_mapping,
        };
        #[cfg(target_os = "linux")]
        if let Some(start) = mapped(layout.size()) {
            return Some(table(start, true));
        }
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(table(start, false))
    }
}

impl Drop for OwnedTable {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if self.is_mapping {
            // SAFETY: OWN1: a mapping of this length, which is no longer borrowed (OWN2).
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.layout.size()) };
            return;
        }
        debug_assert!(!self.is_mapping);
        // SAFETY: OWN1: a block of the heap with this layout, which is no longer borrowed (OWN2).
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl LentTables {
    /// Lends a table of zero values, whose memory is not touched until the table is used. The table is empty if
    /// the host has no memory.
    pub(crate) fn lend_zeroed<T: Zeroed>(&mut self, count: usize) -> &'static mut [T] {
        const {
            assert!(!core::mem::needs_drop::<T>(), "nobody drops the values");
            assert!(align_of::<T>() <= 4096, "a mapping begins at a page");
        }
        let layout = Layout::array::<T>(count).ok();
        let Some(table) = layout.and_then(OwnedTable::zeroed) else {
            return Default::default();
        };
        let mut records = NonNull::slice_from_raw_parts(table.start.cast::<T>(), count);
        self.0.push(table);
        // SAFETY: new memory for `count` values, for which zero is valid, lent only here (OWN1). The borrow
        // ends before the memory is freed (OWN2).
        unsafe { records.as_mut() }
    }
}

/// Minimum bytes of a table that gets its own mapping.
#[cfg(target_os = "linux")]
const MIN_MAPPED_BYTES: usize = 128 << 10;

/// Maps zeroed memory; `None` if the table is small or the system refuses.
#[cfg(target_os = "linux")]
fn mapped(bytes: usize) -> Option<NonNull<u8>> {
    if bytes < MIN_MAPPED_BYTES {
        return None;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the system chooses free addresses, so the call replaces no mapping.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(start.cast())
}

impl<A> WithTables<A> {
    /// Makes a value with `make`, which borrows the value's tables from its argument.
    ///
    /// # Safety
    /// Borrows of the tables go into the value and nowhere else, and are not taken out of it (OWN2).
    pub(crate) unsafe fn new(make: impl FnOnce(&mut LentTables) -> A) -> Self {
        // SAFETY: OWN2: the caller promises that borrows of the tables go only into the value.
        let Ok(made) = unsafe { Self::try_new(|tables| Ok::<A, Infallible>(make(tables))) };
        made
    }

    /// Makes a value with `make`, which borrows the value's tables from its argument.
    ///
    /// # Errors
    /// The errors of `make`; the tables are then freed.
    ///
    /// # Safety
    /// Borrows of the tables go into the value and nowhere else, and are not taken out of it (OWN2).
    pub(crate) unsafe fn try_new<E>(
        make: impl FnOnce(&mut LentTables) -> Result<A, E>,
    ) -> Result<Self, E> {
        let mut tables = LentTables::default();
        let value = make(&mut tables)?;
        Ok(Self {
            value,
            _tables: tables,
        })
    }
}

impl WithTables<RegionPool<'static>> {
    /// Makes a best-fit allocator over a table of `chunks` chunks.
    ///
    /// # Errors
    /// If the configuration or the table is invalid.
    pub(crate) fn region_pool(config: RegionConfig, chunks: usize) -> Result<Self, ConfigError> {
        // SAFETY: OWN2: the table goes into the pool, which cannot return it.
        unsafe { Self::try_new(|tables| RegionPool::new(config, tables.lend_zeroed(chunks))) }
    }
}

impl<S: Source<RegionPool<'static>>> WithTables<Shared<RegionPool<'static>, S, Yield>> {
    /// Makes a best-fit allocator, shared by threads, over a table of `chunks` chunks and the regions of `source`.
    ///
    /// # Errors
    /// If the configuration or the table is invalid.
    pub(crate) fn regions(
        config: RegionConfig,
        chunks: usize,
        source: S,
    ) -> Result<Self, ConfigError> {
        let WithTables { value, _tables } = WithTables::region_pool(config, chunks)?;
        Ok(Self {
            value: Shared::with_wait(value, source),
            _tables,
        })
    }
}

impl<A> Deref for WithTables<A> {
    type Target = A;

    #[inline]
    fn deref(&self) -> &A {
        &self.value
    }
}

impl<A> DerefMut for WithTables<A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut A {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of pages of a table that have memory; `None` if it is not mapped.
    #[cfg(target_os = "linux")]
    fn resident(table: *const [u64]) -> Option<usize> {
        let start = table.cast::<u8>().addr().next_multiple_of(4096);
        let pages = (size_of::<u64>() * table.len() - 4096) / 4096;
        let mut found = vec![0u8; pages];
        let at = core::ptr::without_provenance_mut(start);
        // SAFETY: the call only reports on pages of the table, in one byte for each.
        let asked = unsafe { libc::mincore(at, pages * 4096, found.as_mut_ptr()) };
        (asked == 0).then(|| found.iter().filter(|page| **page & 1 == 1).count())
    }

    /// The system's allocator serves large zeroed blocks from its heap once blocks of that size have been freed,
    /// and fills them with zeros.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_large_table_has_no_memory_until_it_is_used() {
        const COUNT: usize = 2 << 20;
        for _ in 0..3 {
            // Leaves a hole of that size in the heap, below a block that stays.
            let (large, above) = (vec![1u64; COUNT + 1000], vec![1u8; 1000]);
            drop(core::hint::black_box(large));
            let mut tables = LentTables::default();
            let table = tables.lend_zeroed::<u64>(COUNT);
            assert_eq!(resident(table), Some(0));
            table[COUNT / 2] = 7;
            assert_eq!(resident(table), Some(1));
            assert_eq!((table[0], table[COUNT - 1]), (0, 0));
            drop(above);
        }
    }

    /// Reads its table when it is dropped, as the core's algorithms may.
    struct Looks(&'static mut [u64]);

    impl Drop for Looks {
        fn drop(&mut self) {
            assert!(self.0.iter().all(|one| *one == 7));
        }
    }

    #[test]
    fn a_zeroed_table_is_as_long_as_asked_for_however_its_records_are_aligned() {
        let mut tables = LentTables::default();
        for count in [0, 1, 2, 3, 1000, 100_000] {
            assert_eq!(tables.lend_zeroed::<(u32, u32)>(count).len(), count);
            let chunks = tables.lend_zeroed::<larder_core::Chunk>(count);
            assert_eq!(chunks.len(), count);
        }
        assert!(tables.lend_zeroed::<u64>(usize::MAX).is_empty());
        assert!(tables.lend_zeroed::<u64>(usize::MAX / 16).is_empty());
    }

    /// Covers a small table, and a mapped one, which could not be read if it were freed before the value.
    #[test]
    fn tables_live_as_long_as_the_value_and_no_longer() {
        for count in [3, 1 << 20] {
            let looks = |tables: &mut LentTables| Looks(tables.lend_zeroed(count));
            // SAFETY: the table goes into the value, and stays there.
            let mut with_tables = unsafe { WithTables::new(looks) };
            with_tables.0.fill(7);
            let moved = Box::new(with_tables);
            assert_eq!((moved.0.len(), moved.0[count - 1]), (count, 7));
            let table: *const [u64] = &raw const *moved.0;
            drop(moved);
            #[cfg(target_os = "linux")]
            assert!(count == 3 || resident(table) != Some(table.len() / 512 - 1));
        }
        // SAFETY: no value is made.
        let refused = unsafe {
            WithTables::try_new(|tables| {
                assert!(tables.lend_zeroed::<u32>(0).is_empty());
                Err::<Looks, _>(tables.lend_zeroed::<u64>(3).len())
            })
        };
        assert_eq!(refused.err(), Some(3));
    }
}
