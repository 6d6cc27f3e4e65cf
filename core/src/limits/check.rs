//! Checks the invariants of a [`LimitTree`], for tests and the fuzzer.

use super::tree::LimitTree;

impl LimitTree {
    /// Checks TREE1 to TREE5. O(records x depth).
    ///
    /// # Errors
    /// A description of the first broken invariant.
    pub fn check_invariants(&self) -> Result<(), &'static str> {
        let count = self.nodes.len();
        let mut listed = 0;
        for (index, node) in (0_u32..).zip(self.nodes.iter()) {
            if !node.live {
                continue;
            }
            let (mut children, mut child, mut below) = (0, node.child, 0_u64);
            let (mut floors, mut before) = (0_u64, u32::MAX);
            while let Some(record) = self.nodes.get(child as usize) {
                let is_next = record.parent == index && record.prev == before;
                if !record.live || !is_next || children > count {
                    return Err("TREE5: a list of children holds something else");
                }
                below = below.saturating_add(record.used);
                floors = floors.saturating_add(record.config.floor_bytes);
                before = child;
                children += 1;
                child = record.next;
            }
            listed += children;
            if node.used != node.own.saturating_add(below) {
                return Err("TREE1: used is not own and what the children use");
            }
            if (node.used > node.config.hard_bytes) != node.in_excess {
                return Err(
                    "TREE2: above the hard limit without being marked, or marked for nothing",
                );
            }
            if (node.used > node.config.soft_bytes) != node.past_soft {
                return Err("TREE3: the mark of the soft limit is wrong");
            }
            let is_kept = floors == node.promised && floors <= node.config.hard_bytes;
            if node.config.check().is_err() || !is_kept {
                return Err("TREE4: the limits contradict each other");
            }
            let (mut up, mut steps) = (index, 0);
            while let Some(record) = self.nodes.get(up as usize) {
                up = record.parent;
                steps += 1;
                if steps > count {
                    return Err("TREE5: a way up does not end");
                }
            }
        }
        let live = self.nodes.iter().filter(|node| node.live).count();
        let (mut vacant, mut index) = (0, self.vacant);
        while let Some(record) = self.nodes.get(index as usize) {
            if record.live || vacant > count {
                return Err("TREE5: the list of vacant records holds something else");
            }
            vacant += 1;
            index = record.next;
        }
        if listed + 1 != live || live + vacant != count {
            return Err("TREE5: a record is in no list, or in two");
        }
        Ok(())
    }
}
