//! Checks a pool's invariants, for tests.

use super::Pool;
use super::buffer::{Buffer, BufferState, OfSize, OfState};
use crate::table::list::{Linked, Queue};

/// Returns `words` as the error unless `fact` is true. An error is a defect of this crate.
fn holds(fact: bool, words: &'static str) -> Result<(), &'static str> {
    if fact { Ok(()) } else { Err(words) }
}

impl Pool {
    /// Checks POOL1 to POOL6. For small tables: O(records), plus a walk through its size's list for each cached buffer.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), &'static str> {
        let lists = [
            (self.idle, BufferState::Idle),
            (self.stuck, BufferState::Stuck),
            (self.leaving, BufferState::Leaving),
        ];
        let is_vacant = |record: &Buffer| record.state == BufferState::Vacant;
        holds(self.buffers.is_sound(is_vacant), "POOL1: vacant records")?;
        for (list, state) in lists {
            self.check_list(list, state)?;
        }
        holds(
            self.growing == self.count(BufferState::Growing),
            "POOL1: growing",
        )?;
        holds(self.out == self.count(BufferState::Out), "POOL1: out")?;
        holds(self.going == self.count(BufferState::Going), "POOL1: going")?;
        self.check_sizes()?;
        let limits =
            self.idle.count <= self.limit_buffers && self.idle_bytes <= self.config.limit_bytes;
        holds(limits, "POOL4: more is idle than the limits allow")?;
        self.check_bytes()
    }

    fn records(&self) -> impl Iterator<Item = (u32, &Buffer)> {
        let links = self.buffers.links();
        links.map(|link| (link, self.buffers.at(link)))
    }

    fn count(&self, state: BufferState) -> u32 {
        let of_state = self.records().filter(|(_, record)| record.state == state);
        of_state.map(|_| 1).sum()
    }

    fn check_list(&self, list: Queue<u32>, state: BufferState) -> Result<(), &'static str> {
        let (mut link, mut newer, mut steps) = (list.newest, 0, 0);
        for _ in 0..list.count {
            let record = self.buffers.at(link);
            holds(
                link != 0 && record.state == state,
                "POOL1: in a foreign list",
            )?;
            let previous = Linked::<OfState>::previous(record);
            holds(previous == newer, "POOL1: a list's links")?;
            let age = self.step.wrapping_sub(record.step);
            holds(
                state != BufferState::Idle || age >= steps,
                "POOL2: out of order",
            )?;
            steps = age;
            newer = link;
            link = Linked::<OfState>::next(record);
        }
        holds(link == 0 && list.oldest == newer, "POOL1: a list's end")?;
        holds(list.count == self.count(state), "POOL1: not in its list")
    }

    fn check_sizes(&self) -> Result<(), &'static str> {
        let kept = |state| matches!(state, BufferState::Idle | BufferState::Stuck);
        let mut in_lists = 0;
        for newest in self.sizes.slots().iter().filter(|slot| **slot != 0) {
            let bytes = self.buffers.at(*newest).bytes;
            let found = self.sizes.newest(&self.buffers, bytes) == Some(*newest);
            holds(found, "POOL3: a size is not found")?;
            let (mut link, mut newer) = (*newest, 0);
            while link != 0 {
                let record = self.buffers.at(link);
                holds(kept(record.state), "POOL3: not kept, in a list")?;
                holds(record.bytes == bytes, "POOL3: two sizes in a list")?;
                let previous = Linked::<OfSize>::previous(record);
                holds(previous == newer, "POOL3: a list's links")?;
                in_lists += 1;
                holds(in_lists <= self.buffers.capacity(), "POOL3: no list")?;
                (newer, link) = (link, Linked::<OfSize>::next(record));
            }
        }
        let all = self.idle.count + self.stuck.count;
        holds(in_lists == all, "POOL3: kept, in no list")
    }

    fn check_bytes(&self) -> Result<(), &'static str> {
        let (mut held, mut live, mut requested, mut idle) = (0, 0, 0, 0);
        let mut growing = 0;
        for (_, record) in self.records() {
            match record.state {
                BufferState::Vacant => continue,
                BufferState::Growing => {
                    growing += u128::from(record.bytes);
                    continue;
                }
                BufferState::Idle => idle += record.held_bytes,
                BufferState::Out => {
                    live += record.granted_bytes();
                    requested += record.requested_bytes;
                    let inside = record.start <= record.block
                        && record.requested_bytes <= record.granted_bytes();
                    holds(inside, "POOL6: a block beyond its buffer")?;
                }
                BufferState::Stuck | BufferState::Leaving | BufferState::Going => {}
            }
            held += record.held_bytes;
            holds(
                record.bytes <= record.held_bytes,
                "POOL6: beyond what is held",
            )?;
        }
        holds(held == self.stats.reserved_bytes, "POOL5: held bytes")?;
        holds(growing == self.growing_bytes, "POOL5: growing bytes")?;
        holds(live == self.stats.live_bytes, "POOL5: live bytes")?;
        holds(
            requested == self.stats.requested_bytes,
            "POOL5: requested bytes",
        )?;
        holds(idle == self.idle_bytes, "POOL5: idle bytes")
    }
}
