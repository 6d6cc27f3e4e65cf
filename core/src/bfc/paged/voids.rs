//! The list of void chunks, and how they join (P6).

use super::{Link, PagedBfc};
use crate::bfc::chunk::Chunk;
use crate::bfc::index::AddressIndex;

impl<I: AddressIndex> PagedBfc<'_, I> {
    /// Enters a void chunk in the list.
    pub(super) fn list_void(&mut self, link: Link) {
        let old = self.voids;
        let chunk = self.bfc.table.at_mut(link);
        chunk.set_next_free(old);
        chunk.set_previous_free(Link::NIL);
        if old.is_some() {
            self.bfc.table.at_mut(old).set_previous_free(link);
        }
        self.voids = link;
    }

    pub(super) fn unlist_void(&mut self, link: Link) {
        let chunk = self.bfc.table.at(link);
        let (next, previous) = (chunk.next_free(), chunk.previous_free());
        if next.is_some() {
            self.bfc.table.at_mut(next).set_previous_free(previous);
        }
        if previous.is_some() {
            self.bfc.table.at_mut(previous).set_next_free(next);
        } else {
            self.voids = next;
        }
    }

    /// Joins an unlisted void chunk with its void neighbours and lists the result.
    pub(super) fn join_void(&mut self, link: Link) {
        let Chunk { prev, next, .. } = *self.bfc.table.at(link);
        if self.bfc.table.at(next).is_void() {
            self.unlist_void(next);
            self.bfc.absorb_next(link, next);
        }
        if self.bfc.table.at(prev).is_void() {
            self.bfc.absorb_next(prev, link);
            return;
        }
        self.list_void(link);
    }
}
