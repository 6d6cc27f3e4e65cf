//! The registered visitors, until an allocator of their memory is made.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::error::VisitorLate;
use super::topology::Node;
use super::watch::Visitors;
use crate::driver::locked;

/// The memory whose regions a visitor sees.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Visited {
    /// Plain host memory of all nodes.
    Cpu,
    /// GPUs of a node. If the allocator maps memory, visitors see pieces of physical memory, which may move;
    /// if the driver hides its regions, they see blocks.
    Gpu(Node),
    /// Pinned memory of a node.
    Pinned(Node),
}

impl Visited {
    const fn word(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Gpu(_) => "GPU",
            Self::Pinned(_) => "pinned",
        }
    }
}

#[derive(Default)]
struct VisitorLists {
    visitors: BTreeMap<Visited, Visitors>,
    /// Number of allocators, by memory, that have taken the lists or are about to.
    takers: BTreeMap<&'static str, usize>,
}

/// Lists of visitors. Once an allocator has taken the lists of its memory, they no longer change.
///
/// The lock is held for the lists only; no visitor runs under it.
#[derive(Default)]
pub(super) struct VisitorTable(Mutex<VisitorLists>);

/// A new allocator's claim to the visitors. Dropping this without [`made`](Self::made) withdraws it.
pub(super) struct Taker<'b> {
    table: &'b VisitorTable,
    word: &'static str,
    pub(super) visitors: Visitors,
}

impl VisitorTable {
    /// Registers a visitor.
    pub(super) fn add(
        &self,
        visited: Visited,
        enter: impl FnOnce(&mut Visitors),
    ) -> Result<(), VisitorLate> {
        let memory = visited.word();
        let mut lists = locked(&self.0);
        if lists.takers.get(memory).is_some_and(|takers| *takers > 0) {
            return Err(VisitorLate { memory });
        }
        enter(lists.visitors.entry(visited).or_default());
        Ok(())
    }

    /// Returns the visitors for an allocator that is being made.
    pub(super) fn take(&self, visited: Visited) -> Taker<'_> {
        let word = visited.word();
        let mut lists = locked(&self.0);
        *lists.takers.entry(word).or_default() += 1;
        let visitors = lists.visitors.get(&visited).cloned().unwrap_or_default();
        Taker {
            table: self,
            word,
            visitors,
        }
    }
}

impl Taker<'_> {
    /// Confirms that the allocator exists.
    pub(super) fn made(self) {
        core::mem::forget(self);
    }
}

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        let mut lists = locked(&self.table.0);
        if let Some(takers) = lists.takers.get_mut(self.word) {
            *takers = takers.saturating_sub(1);
        }
    }
}
