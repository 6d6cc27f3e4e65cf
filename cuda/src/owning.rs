//! [`Owning`]: a value together with the tables that it borrows.
//!
//! The algorithms of the core borrow their tables, so that programs without a heap can lend static ones.
//! Here the tables are boxes that go when the value does.
//!
//! # Invariants
//! * OWN1 a table is a box, lent once, to the value that stands with it in one [`Owning`].
//! * OWN2 the value is dropped before its tables, and nothing that borrows them leaves it.

use core::convert::Infallible;
use core::mem::needs_drop;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use std::alloc::{Layout, alloc_zeroed};

use larder_core::Zeroed;

/// A value, and what it borrows.
pub(crate) struct Owning<A> {
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
        const { assert!(!needs_drop::<T>(), "only words are dropped") };
        let bytes = size_of::<T>().checked_mul(count);
        let bytes = bytes.and_then(|bytes| bytes.checked_add(align_of::<T>()));
        let words = bytes.map_or_else(Box::default, |bytes| zeroed(bytes.div_ceil(WORD_BYTES)));
        // SAFETY: zero is a value, and this is the only borrow of the words.
        let (_, records, _) = unsafe { self.lend(words).align_to_mut::<T>() };
        records.get_mut(..count).unwrap_or_default()
    }
}

/// What every allocator aligns by itself. What must be aligned further, the standard library's asks for
/// unzeroed, and writes all of it.
type Word = u128;

const WORD_BYTES: usize = size_of::<Word>();

/// So many words that are zero; none if the host has not so many.
fn zeroed(count: usize) -> Box<[Word]> {
    let Ok(layout) = Layout::array::<Word>(count) else {
        return Box::default();
    };
    if layout.size() == 0 {
        return Box::default();
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) }.cast::<Word>();
    if start.is_null() {
        return Box::default();
    }
    // SAFETY: new memory of a box's layout for so many words, which are zero.
    unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(start, count)) }
}

impl<A> Owning<A> {
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

impl<A> Deref for Owning<A> {
    type Target = A;

    #[inline]
    fn deref(&self) -> &A {
        &self.value
    }
}

impl<A> DerefMut for Owning<A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut A {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

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
        for count in [0, 1, 2, 3, 1000] {
            assert_eq!(tables.lend_zeroed::<(u32, u32)>(count).len(), count);
            let chunks = tables.lend_zeroed::<larder_core::Chunk>(count);
            assert_eq!(chunks.len(), count);
        }
        assert!(tables.lend_zeroed::<u64>(usize::MAX).is_empty());
        assert!(tables.lend_zeroed::<u64>(usize::MAX / 16).is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_zeroed_table_takes_no_memory_before_it_is_used() {
        const BYTES: usize = 256 << 20;
        let resident_pages = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
            pages
        };
        let mut tables = Tables::default();
        let before = resident_pages();
        let chunks = tables.lend_zeroed::<larder_core::Chunk>(BYTES / 32);
        // A quarter, if pages have 4 KiB: far more than what runs beside takes.
        assert!(resident_pages().saturating_sub(before) < BYTES / 4096 / 4);
        assert_eq!(chunks.len(), BYTES / 32);
    }

    #[test]
    fn tables_live_as_long_as_the_value_and_no_longer() {
        let one = Arc::new(7);
        let records = || vec![one.clone(); 3];
        // SAFETY: the table goes into the value, and stays there.
        let mut owning = unsafe { Owning::new(|tables| Looks(tables.lend(records()))) };
        assert_eq!((owning.0.len(), Arc::strong_count(&one)), (3, 4));
        owning.0[1] = one.clone();
        let moved = Box::new(owning);
        assert_eq!(*moved.0[2], 7);
        drop(moved);
        assert_eq!(Arc::strong_count(&one), 1);
        // SAFETY: no value is made.
        let refused = unsafe {
            Owning::try_new(|tables| {
                assert!(tables.lend(Vec::<u32>::new()).is_empty());
                Err::<Looks, _>(tables.lend(records()).len())
            })
        };
        assert_eq!(refused.err(), Some(3));
        assert_eq!(Arc::strong_count(&one), 1);
    }
}
