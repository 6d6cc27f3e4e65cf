//! The highest top at each moment, kept in a tree over time. Tops are raised and queried for whole ranges.
//!
//! # Cost
//! Each operation is O(log n).

use core::ops::Range;

use super::tables::UndoRecord;

/// The highest tops over moments `0..count`.
///
/// Node 0 stands for all cells of time. A node is followed by the nodes of its left half, and then by those of its
/// right half. `lowest` of a node is the highest top in it, and `rest` is the highest top that was raised over all of
/// it.
pub(super) struct Skyline<'a> {
    nodes: &'a mut [UndoRecord],
    cells: usize,
    /// Number of moments in one cell, as a power of two. With few nodes, time is coarse and tops are higher.
    shift: u32,
}

impl<'a> Skyline<'a> {
    /// Creates a skyline over `count` moments, with nothing raised. `nodes` must not be empty.
    pub(super) fn new(nodes: &'a mut [UndoRecord], count: usize) -> Self {
        let mut shift = 0;
        while 2 * ((count >> shift) + 1) > nodes.len() && count >> shift > 0 {
            shift += 1;
        }
        let cells = (count >> shift) + 1;
        let len = nodes.len().min(2 * cells);
        nodes[..len].fill(UndoRecord::VACANT);
        Self {
            nodes,
            cells,
            shift,
        }
    }

    /// Returns the highest top in the range, which must not be empty.
    pub(super) fn highest(&self, range: Range<usize>) -> u64 {
        self.highest_in(0, 0..self.cells, &self.cells_of(range))
    }

    /// Raises every top in the range to at least `top`.
    pub(super) fn raise(&mut self, range: Range<usize>, top: u64) {
        let range = self.cells_of(range);
        self.raise_in(0, 0..self.cells, &range, top);
    }

    const fn cells_of(&self, range: Range<usize>) -> Range<usize> {
        range.start >> self.shift..((range.end - 1) >> self.shift) + 1
    }

    fn highest_in(&self, node: usize, own: Range<usize>, range: &Range<usize>) -> u64 {
        if own.end <= range.start || range.end <= own.start {
            return 0;
        }
        if range.start <= own.start && own.end <= range.end {
            return self.nodes[node].lowest;
        }
        let (left, right, middle) = halves(node, &own);
        self.nodes[node]
            .rest
            .max(self.highest_in(left, own.start..middle, range))
            .max(self.highest_in(right, middle..own.end, range))
    }

    fn raise_in(&mut self, node: usize, own: Range<usize>, range: &Range<usize>, top: u64) {
        if own.end <= range.start || range.end <= own.start {
            return;
        }
        let record = &mut self.nodes[node];
        record.lowest = record.lowest.max(top);
        if range.start <= own.start && own.end <= range.end {
            record.rest = record.rest.max(top);
            return;
        }
        let (left, right, middle) = halves(node, &own);
        self.raise_in(left, own.start..middle, range, top);
        self.raise_in(right, middle..own.end, range, top);
    }
}

/// Returns the nodes of a node's halves, and the cell where they meet.
const fn halves(node: usize, own: &Range<usize>) -> (usize, usize, usize) {
    let middle = own.start + (own.end - own.start) / 2;
    // The left half is a tree of one node fewer than twice its cells.
    (node + 1, node + 2 * (middle - own.start), middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tops_are_those_of_a_list_and_with_few_nodes_never_lower() {
        let mut seed = 1_u64;
        let mut below = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % bound
        };
        for (count, nodes) in [(1, 4), (2, 6), (37, 76), (64, 130), (100, 9), (100, 2)] {
            let mut table = [UndoRecord::VACANT; 130];
            let mut skyline = Skyline::new(&mut table[..nodes], count);
            let mut slow = [0; 100];
            let exact = skyline.shift == 0;
            for _ in 0..300 {
                let start = below(count);
                let range = start..start + 1 + below(count - start);
                let highest = slow[range.clone()].iter().max().copied().unwrap();
                let found = skyline.highest(range.clone());
                assert!(if exact {
                    found == highest
                } else {
                    found >= highest
                });
                let top = below(1000) as u64;
                skyline.raise(range.clone(), top);
                slow[range].iter_mut().for_each(|old| *old = top.max(*old));
            }
        }
    }
}
