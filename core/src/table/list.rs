//! Doubly linked lists of a slab's records. The links are stored in the records.
//!
//! The owner of a list stores the link of its first record. The owner of a [`Queue`] stores both ends.
//!
//! # Invariants
//! * LIST1 if B is the next record of A, then A is the previous record of B. The first record has no previous record,
//!   and the last has no next record.
//! * LIST2 a record is in at most one of the lists that use the same links.
//! * LIST3 `newest` and `oldest` of a queue are the first and the last of its list, and `count` is its length.
//!
//! All operations are O(1).

use core::ops::DerefMut;

use super::slab::{Sink, SlabOver};

/// A record with the links of a list. `W` names the pair of links, because a record can have several.
pub(crate) trait Linked<W = ()>: Sink {
    fn next(&self) -> Self::Link;
    fn previous(&self) -> Self::Link;
    fn set_next(&mut self, link: Self::Link);
    fn set_previous(&mut self, link: Self::Link);
}

/// Inserts a record that is in no list before `first`, and makes it the first. Returns whether it is the only one.
#[inline]
pub(crate) fn push<W, R: Linked<W>>(
    slab: &mut SlabOver<impl DerefMut<Target = [R]>>,
    first: R::Link,
    link: R::Link,
) -> bool {
    let record = slab.at_mut(link);
    record.set_next(first);
    record.set_previous(R::Link::from(0));
    if first.into() == 0 {
        return true;
    }
    slab.at_mut(first).set_previous(link);
    false
}

/// Removes a record from its list. If it was the first, returns the link of the new first record, or 0 if there is
/// none.
#[inline]
pub(crate) fn unlink<W, R: Linked<W>>(
    slab: &mut SlabOver<impl DerefMut<Target = [R]>>,
    link: R::Link,
) -> Option<R::Link> {
    let record = slab.at(link);
    let (next, previous) = (record.next(), record.previous());
    if next.into() != 0 {
        slab.at_mut(next).set_previous(previous);
    }
    if previous.into() != 0 {
        slab.at_mut(previous).set_next(next);
        return None;
    }
    Some(next)
}

/// A list with both of its ends, in order of arrival: the next record of a record is older.
#[cfg(feature = "alloc")]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Queue<L> {
    pub(crate) newest: L,
    pub(crate) oldest: L,
    pub(crate) count: u32,
}

#[cfg(feature = "alloc")]
impl<L: Copy + PartialEq> Queue<L> {
    /// Adds a record that is in no list as the newest.
    #[inline]
    pub(crate) fn push<W, R: Linked<W, Link = L>>(
        &mut self,
        slab: &mut SlabOver<impl DerefMut<Target = [R]>>,
        link: L,
    ) {
        if push(slab, self.newest, link) {
            self.oldest = link;
        }
        self.newest = link;
        self.count += 1;
    }

    /// Removes a record of this list.
    #[inline]
    pub(crate) fn unlink<W, R: Linked<W, Link = L>>(
        &mut self,
        slab: &mut SlabOver<impl DerefMut<Target = [R]>>,
        link: L,
    ) {
        if link == self.oldest {
            self.oldest = slab.at(link).previous();
        }
        if let Some(first) = unlink(slab, link) {
            self.newest = first;
        }
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::slab::{Record, Slab};

    /// Two pairs of links.
    struct Above;
    struct Below;

    #[derive(Clone, Copy)]
    struct Plain([u32; 8]);

    static NIL: Plain = Plain::VACANT;

    impl Record for Plain {
        type Link = u32;
        const VACANT: Self = Self([0; 8]);

        fn next_vacant(&self) -> u32 {
            self.0[0]
        }

        fn set_next_vacant(&mut self, link: u32) {
            self.0[0] = link;
        }
    }

    impl Sink for Plain {
        fn nil() -> &'static Self {
            &NIL
        }
    }

    impl Linked<Above> for Plain {
        fn next(&self) -> u32 {
            self.0[1]
        }

        fn previous(&self) -> u32 {
            self.0[2]
        }

        fn set_next(&mut self, link: u32) {
            self.0[1] = link;
        }

        fn set_previous(&mut self, link: u32) {
            self.0[2] = link;
        }
    }

    impl Linked<Below> for Plain {
        fn next(&self) -> u32 {
            self.0[3]
        }

        fn previous(&self) -> u32 {
            self.0[4]
        }

        fn set_next(&mut self, link: u32) {
            self.0[3] = link;
        }

        fn set_previous(&mut self, link: u32) {
            self.0[4] = link;
        }
    }

    /// Checks LIST1, and that the list is `links`.
    fn is<W>(slab: &Slab<'_, Plain>, first: u32, links: &[u32]) -> bool
    where
        Plain: Linked<W>,
    {
        let (mut link, mut previous) = (first, 0);
        let agree = links.iter().all(|expected| {
            let record = slab.at(link);
            let agrees = link == *expected && Linked::<W>::previous(record) == previous;
            (previous, link) = (link, Linked::<W>::next(record));
            agrees
        });
        agree && link == 0
    }

    #[test]
    fn a_record_stands_on_two_lists_and_leaves_each_from_any_place() {
        let mut records = [Plain::VACANT; 6];
        let mut slab = Slab::new(&mut records);
        let (mut above, mut below) = (0, 0);
        for number in 1..=5 {
            let link = slab.insert(Plain::VACANT).unwrap();
            assert_eq!(push::<Above, _>(&mut slab, above, link), number == 1);
            above = link;
            if number != 3 {
                assert_eq!(push::<Below, _>(&mut slab, below, link), number == 1);
                below = link;
            }
        }
        assert!(is::<Above>(&slab, above, &[5, 4, 3, 2, 1]));
        assert!(is::<Below>(&slab, below, &[5, 4, 2, 1]));
        assert_eq!(unlink::<Above, _>(&mut slab, 3), None, "from the middle");
        assert_eq!(unlink::<Above, _>(&mut slab, 1), None, "from the end");
        assert_eq!(unlink::<Above, _>(&mut slab, 5), Some(4), "the first");
        assert!(is::<Above>(&slab, 4, &[4, 2]));
        assert!(is::<Below>(&slab, below, &[5, 4, 2, 1]));
        assert_eq!(unlink::<Above, _>(&mut slab, 4), Some(2));
        assert_eq!(
            unlink::<Above, _>(&mut slab, 2),
            Some(0),
            "the last one left"
        );
        assert!(is::<Above>(&slab, 0, &[]));
    }

    #[cfg(feature = "alloc")]
    #[test]
    fn a_queue_knows_both_ends_and_its_length() {
        let mut records = [Plain::VACANT; 5];
        let mut slab = Slab::new(&mut records);
        let mut queue = Queue::<u32>::default();
        for _ in 0..4 {
            let link = slab.insert(Plain::VACANT).unwrap();
            queue.push::<Above, _>(&mut slab, link);
        }
        assert_eq!((queue.newest, queue.oldest, queue.count), (4, 1, 4));
        // Removes the oldest, one from the middle, the newest, and the only one left.
        for (link, ends) in [(1, (4, 2)), (3, (4, 2)), (4, (2, 2)), (2, (0, 0))] {
            queue.unlink::<Above, _>(&mut slab, link);
            assert_eq!((queue.newest, queue.oldest), ends);
        }
        assert_eq!(queue.count, 0);
        queue.push::<Above, _>(&mut slab, 3);
        assert!(is::<Above>(&slab, queue.newest, &[3]) && queue.oldest == 3);
    }
}
