//! [`WithTables`]: a value together with the tables that it borrows.
//!
//! The algorithms of the core borrow their tables, so that programs without a heap can lend static ones.
//! Here the tables are boxes that go when the value does; large ones of zeros are mappings of their own, since
//! an allocator that has such memory from earlier would write all of it, and keep it.
//!
//! # Invariants
//! * OWN1 a table is a box or a mapping of its own, lent once, to the value that stands with it in one [`WithTables`].
//! * OWN2 the value is dropped before its tables, and nothing that borrows them leaves it.

use core::convert::Infallible;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use std::alloc::{Layout, alloc_zeroed};

use larder_core::Zeroed;

/// A value, and what it borrows.
pub(crate) struct WithTables<A> {
    /// In front of the tables, so that it is dropped first (OWN2).
    value: A,
    _tables: Tables,
}

/// Boxes that are lent.
#[derive(Default)]
pub(crate) struct Tables(Vec<Box<dyn Lent>>);

/// A table of whatever records.
trait Lent: Send + Sync {}

struct Table<T>(NonNull<[T]>);

/// A table that is a mapping.
#[cfg(target_os = "linux")]
struct MappedTable<T>(NonNull<[T]>);

#[cfg(target_os = "linux")]
impl<T: Send + Sync> Lent for MappedTable<T> {}

// SAFETY: it does nothing with its records but drop them (OWN1), on whichever thread that may be.
#[cfg(target_os = "linux")]
unsafe impl<T: Send> Send for MappedTable<T> {}
// SAFETY: a shared one does nothing.
#[cfg(target_os = "linux")]
unsafe impl<T: Sync> Sync for MappedTable<T> {}

#[cfg(target_os = "linux")]
impl<T> Drop for MappedTable<T> {
    fn drop(&mut self) {
        let bytes = self.0.len() * size_of::<T>();
        // SAFETY: OWN1: records that nobody borrows any more (OWN2).
        unsafe { self.0.drop_in_place() };
        // SAFETY: OWN1: a mapping of so many bytes, which nobody uses any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), bytes) };
    }
}

impl<T: Send + Sync> Lent for Table<T> {}

// SAFETY: it does nothing with its records but drop them (OWN1), on whichever thread that may be.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: a shared one does nothing.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: OWN1: it was a box when it was made, and nobody borrows it any more (OWN2).
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Tables {
    /// Lends a table to the value that is being made.
    pub(crate) fn lend<T: Send + Sync + 'static>(
        &mut self,
        table: impl Into<Box<[T]>>,
    ) -> &'static mut [T] {
        let mut records = NonNull::from(Box::leak(table.into()));
        self.0.push(Box::new(Table(records)));
        // SAFETY: OWN1: a box a moment ago, lent here and nowhere else; OWN2 ends the borrow in time.
        unsafe { records.as_mut() }
    }
}

impl Tables {
    /// Lends a table of values that are zero: memory that is not touched until it is used. Empty if the
    /// host has none.
    pub(crate) fn lend_zeroed<T: Zeroed>(&mut self, count: usize) -> &'static mut [T] {
        #[cfg(target_os = "linux")]
        if let Some(mut records) = mapped(count) {
            self.0.push(Box::new(MappedTable(records)));
            // SAFETY: OWN1: mapped a moment ago, lent here and nowhere else; OWN2 ends the borrow in time.
            return unsafe { records.as_mut() };
        }
        self.lend(zeroed(count))
    }
}

/// Tables of less are not worth a mapping.
#[cfg(target_os = "linux")]
const MIN_MAPPED_BYTES: usize = 128 << 10;

/// A mapping of zeros; none for a small table, or if the system refuses.
#[cfg(target_os = "linux")]
fn mapped<T: Zeroed>(count: usize) -> Option<NonNull<[T]>> {
    const { assert!(align_of::<T>() <= 4096, "a mapping begins at a page") };
    let bytes = count.checked_mul(size_of::<T>())?;
    if bytes < MIN_MAPPED_BYTES {
        return None;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the system chooses free addresses, so that it replaces no other mapping.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = NonNull::new(start.cast::<T>())?;
    Some(NonNull::slice_from_raw_parts(start, count))
}

fn zeroed<T: Zeroed>(count: usize) -> Box<[T]> {
    let Ok(layout) = Layout::array::<T>(count) else {
        return Box::default();
    };
    if layout.size() == 0 {
        return Box::default();
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        return Box::default();
    }
    // SAFETY: new memory of a box's layout for so many values, of which zero is one.
    unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(start, count)) }
}

impl<A> WithTables<A> {
    /// A value that `make` makes of the tables it has lent.
    ///
    /// # Safety
    /// What borrows the tables goes into the value and nowhere else, and is not taken out of it (OWN2).
    pub(crate) unsafe fn new(make: impl FnOnce(&mut Tables) -> A) -> Self {
        // SAFETY: the caller's promise is ours.
        let Ok(made) = unsafe { Self::try_new(|tables| Ok::<A, Infallible>(make(tables))) };
        made
    }

    /// A value that `make` makes of the tables it has lent.
    ///
    /// # Errors
    /// Those of `make`; the tables are gone then.
    ///
    /// # Safety
    /// What borrows the tables goes into the value and nowhere else, and is not taken out of it (OWN2).
    pub(crate) unsafe fn try_new<E>(
        make: impl FnOnce(&mut Tables) -> Result<A, E>,
    ) -> Result<Self, E> {
        let mut tables = Tables::default();
        let value = make(&mut tables)?;
        Ok(Self {
            value,
            _tables: tables,
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
    use std::sync::Arc;

    use super::*;

    /// Pages of a table that have memory.
    #[cfg(target_os = "linux")]
    fn resident(table: &[u64]) -> usize {
        let start = table.as_ptr().addr().next_multiple_of(4096);
        let pages = (size_of_val(table) - 4096) / 4096;
        let mut found = vec![0u8; pages];
        let at = ptr::without_provenance_mut(start);
        // SAFETY: it only answers for pages of the table, into a place for each.
        let asked = unsafe { libc::mincore(at, pages * 4096, found.as_mut_ptr()) };
        assert_eq!(asked, 0);
        found.iter().filter(|page| **page & 1 == 1).count()
    }

    /// The system's allocator serves large zeroed blocks from its heap once blocks as large were freed, and
    /// writes zeros over what it finds there.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_large_table_has_no_memory_until_it_is_used() {
        const COUNT: usize = 2 << 20;
        for _ in 0..3 {
            // So that the heap has a hole of that size: one block above it stays.
            let (large, above) = (vec![1u64; COUNT + 1000], vec![1u8; 1000]);
            drop(core::hint::black_box(large));
            let mut tables = Tables::default();
            let table = tables.lend_zeroed::<u64>(COUNT);
            assert_eq!(resident(table), 0);
            table[COUNT / 2] = 7;
            assert_eq!(resident(table), 1);
            assert_eq!((table[0], table[COUNT - 1]), (0, 0));
            drop(above);
        }
    }

    /// Looks at its table when it is dropped, as the core's algorithms may.
    struct Looks(&'static mut [Arc<u32>]);

    impl Drop for Looks {
        fn drop(&mut self) {
            assert!(self.0.iter().all(|one| **one == 7));
        }
    }

    #[test]
    fn a_zeroed_table_is_as_long_as_asked_for_however_its_records_are_aligned() {
        let mut tables = Tables::default();
        for count in [0, 1, 2, 3, 1000, 100_000] {
            assert_eq!(tables.lend_zeroed::<(u32, u32)>(count).len(), count);
            let chunks = tables.lend_zeroed::<larder_core::Chunk>(count);
            assert_eq!(chunks.len(), count);
        }
        assert!(tables.lend_zeroed::<u64>(usize::MAX).is_empty());
        assert!(tables.lend_zeroed::<u64>(usize::MAX / 16).is_empty());
    }

    #[test]
    fn tables_live_as_long_as_the_value_and_no_longer() {
        let one = Arc::new(7);
        let records = || vec![one.clone(); 3];
        // SAFETY: the table goes into the value, and stays there.
        let mut with_tables = unsafe { WithTables::new(|tables| Looks(tables.lend(records()))) };
        assert_eq!((with_tables.0.len(), Arc::strong_count(&one)), (3, 4));
        with_tables.0[1] = one.clone();
        let moved = Box::new(with_tables);
        assert_eq!(*moved.0[2], 7);
        drop(moved);
        assert_eq!(Arc::strong_count(&one), 1);
        // SAFETY: no value is made.
        let refused = unsafe {
            WithTables::try_new(|tables| {
                assert!(tables.lend(Vec::<u32>::new()).is_empty());
                Err::<Looks, _>(tables.lend(records()).len())
            })
        };
        assert_eq!(refused.err(), Some(3));
        assert_eq!(Arc::strong_count(&one), 1);
    }
}
