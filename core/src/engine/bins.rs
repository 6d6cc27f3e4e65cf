//! Bins: one list of free chunks for each class, and a two-level bitmap of the classes that are not empty.
//!
//! Invariants:
//! * BIN1 a [list](crate::table::list) holds only free chunks of its class.
//! * BIN2 bit `class` of `words` is set exactly if the list of the class is not empty. Bit `w` of `summary` is set
//!   exactly if `words[w]` is not 0.
//! * BIN3 a chunk enters its list at the front. (A chunk whose size changes within its class keeps its place, because
//!   the caller then does not touch the bins.)
//!
//! All operations are O(1).

use super::chunk::{Chunk, Link};
use super::class::Class;
use crate::table::list;
use crate::table::slab::Slab;

/// Array lengths are powers of two, so that a mask replaces the bounds check.
const HEADS: usize = Class::COUNT.next_power_of_two();
const WORDS: usize = HEADS / 64;

pub(super) struct Bins {
    summary: u32,
    words: [u64; WORDS],
    heads: [Link; HEADS],
}

const _: () = assert!(
    WORDS < 32,
    "the summary's bits, one spare for the shift past the last"
);

impl Bins {
    pub(super) const fn new() -> Self {
        Self {
            summary: 0,
            words: [0; WORDS],
            heads: [Link::NIL; HEADS],
        }
    }

    /// Returns the newest chunk of the class.
    #[inline]
    pub(super) const fn head(&self, class: Class) -> Link {
        self.heads[class.index() & (HEADS - 1)]
    }

    /// Returns the first class that is not empty, starting at `from`.
    #[inline]
    pub(super) const fn next_class(&self, from: usize) -> Option<Class> {
        let word = (from / 64) & (WORDS - 1);
        let here = self.words[word] & (u64::MAX << (from % 64));
        if here != 0 && from < HEADS {
            return Some(Class::from_index(
                word * 64 + here.trailing_zeros() as usize,
            ));
        }
        let above = self.summary & (u32::MAX << (word + 1));
        if above == 0 || from >= HEADS {
            return None;
        }
        let word = above.trailing_zeros() as usize;
        let bits = self.words[word & (WORDS - 1)];
        Some(Class::from_index(
            word * 64 + bits.trailing_zeros() as usize,
        ))
    }

    /// Returns the last class below `from` that is not empty.
    pub(super) const fn class_below(&self, from: usize) -> Option<Class> {
        let word = (from / 64) & (WORDS - 1);
        let here = self.words[word] & !(u64::MAX << (from % 64));
        if here != 0 {
            let bit = 63 - here.leading_zeros() as usize;
            return Some(Class::from_index(word * 64 + bit));
        }
        let below = self.summary & !(u32::MAX << word);
        if below == 0 {
            return None;
        }
        let word = 31 - below.leading_zeros() as usize;
        let bit = 63 - self.words[word & (WORDS - 1)].leading_zeros() as usize;
        Some(Class::from_index(word * 64 + bit))
    }

    /// Puts a free chunk at the front of its class.
    #[inline]
    pub(super) fn insert(&mut self, table: &mut Slab<'_, Chunk>, link: Link) {
        let class = Class::of(table.at(link).size);
        let index = class.index() & (HEADS - 1);
        let old = self.heads[index];
        if list::push(table, old, link) {
            self.words[index / 64] |= 1 << (index % 64);
            self.summary |= 1 << (index / 64);
        }
        self.heads[index] = link;
    }

    /// Removes a free chunk from the class of chunks of `size` granules.
    #[inline]
    pub(super) fn remove(&mut self, table: &mut Slab<'_, Chunk>, link: Link, size: u32) {
        let Some(next) = list::unlink(table, link) else {
            return;
        };
        let index = Class::of(size).index() & (HEADS - 1);
        self.heads[index] = next;
        if next.is_nil() {
            self.words[index / 64] &= !(1 << (index % 64));
            if self.words[index / 64] == 0 {
                self.summary &= !(1 << (index / 64));
            }
        }
    }

    /// Moves a free chunk whose size was `old_size` to the class of its current size, if that is a different class.
    #[inline]
    pub(super) fn resized(&mut self, table: &mut Slab<'_, Chunk>, link: Link, old_size: u32) {
        if Class::of(old_size) != Class::of(table.at(link).size) {
            self.remove(table, link, old_size);
            self.insert(table, link);
        }
    }

    /// Returns whether the bitmap agrees with the lists (BIN2).
    pub(super) fn bitmap_agrees(&self) -> bool {
        let lists = (0..HEADS)
            .all(|i| (self.words[i / 64] >> (i % 64)) & 1 == u64::from(self.heads[i].is_some()));
        let words = (0..WORDS).all(|w| (self.summary >> w) & 1 == u32::from(self.words[w] != 0));
        lists && words && self.summary >> WORDS == 0
    }
}
