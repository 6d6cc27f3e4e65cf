//! A walk over a pool's invariants, for tests.

use core::fmt;

use super::Pool;
use super::buffer::{Buffer, List, State};

/// An invariant that does not hold: a defect of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation(&'static str);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for Violation {}

fn holds(fact: bool, words: &'static str) -> Result<(), Violation> {
    if fact { Ok(()) } else { Err(Violation(words)) }
}

impl Pool<'_> {
    /// Walks POOL1 to POOL6. O(records), and for each kept buffer its ring: for small tables.
    ///
    /// # Errors
    /// Names the first that does not hold.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let lists = [
            (self.buffers.vacant(), State::Vacant),
            (self.idle, State::Idle),
            (self.stuck, State::Stuck),
            (self.leaving, State::Leaving),
        ];
        for (list, state) in lists {
            self.check_list(list, state)?;
        }
        holds(self.growing == self.count(State::Growing), "POOL1: growing")?;
        holds(self.out == self.count(State::Out), "POOL1: out")?;
        holds(self.going == self.count(State::Going), "POOL1: going")?;
        self.check_rings()?;
        let limits =
            self.idle.count <= self.limit_buffers && self.idle_bytes <= self.config.limit_bytes;
        holds(limits, "POOL4: more is idle than the limits allow")?;
        self.check_bytes()
    }

    fn records(&self) -> impl Iterator<Item = (u32, &Buffer)> {
        (1..self.buffers.fresh()).map(|link| (link, self.buffers.at(link)))
    }

    fn count(&self, state: State) -> u32 {
        let of_state = self.records().filter(|(_, record)| record.state == state);
        of_state.map(|_| 1).sum()
    }

    fn check_list(&self, list: List, state: State) -> Result<(), Violation> {
        let (mut link, mut newer, mut steps) = (list.newest, 0, 0);
        for _ in 0..list.count {
            let record = self.buffers.at(link);
            holds(
                link != 0 && record.state == state,
                "POOL1: in a foreign list",
            )?;
            holds(record.newer == newer, "POOL1: a list's links")?;
            let age = self.step.wrapping_sub(record.step);
            holds(state != State::Idle || age >= steps, "POOL2: out of order")?;
            steps = age;
            newer = link;
            link = record.older;
        }
        holds(link == 0 && list.oldest == newer, "POOL1: a list's end")?;
        holds(list.count == self.count(state), "POOL1: not in its list")
    }

    fn check_rings(&self) -> Result<(), Violation> {
        let kept = |state| matches!(state, State::Idle | State::Stuck);
        let mut in_rings = 0;
        for newest in self.sizes.slots().iter().filter(|slot| **slot != 0) {
            let bytes = self.buffers.at(*newest).bytes;
            let place = self.sizes.place(&self.buffers, bytes);
            let found = self.sizes.slots().get(place) == Some(newest);
            holds(found, "POOL3: a size is not found")?;
            let mut link = *newest;
            loop {
                let record = self.buffers.at(link);
                holds(kept(record.state), "POOL3: not kept, in a ring")?;
                holds(record.bytes == bytes, "POOL3: two sizes in a ring")?;
                let older = self.buffers.at(record.same_older);
                holds(older.same_newer == link, "POOL3: a ring's links")?;
                in_rings += 1;
                holds(in_rings <= self.buffers.capacity(), "POOL3: no ring")?;
                link = record.same_older;
                if link == *newest {
                    break;
                }
            }
        }
        let all = self.idle.count + self.stuck.count;
        holds(in_rings == all, "POOL3: kept, in no ring")
    }

    fn check_bytes(&self) -> Result<(), Violation> {
        let (mut held, mut live, mut requested, mut idle) = (0, 0, 0, 0);
        let mut growing = 0;
        for (_, record) in self.records() {
            match record.state {
                State::Vacant => continue,
                State::Growing => {
                    growing += u128::from(record.bytes);
                    continue;
                }
                State::Idle => idle += record.held_bytes,
                State::Out => {
                    live += record.granted_bytes();
                    requested += record.requested_bytes;
                    let inside = record.start <= record.block
                        && record.requested_bytes <= record.granted_bytes();
                    holds(inside, "POOL6: a block beyond its buffer")?;
                }
                State::Stuck | State::Leaving | State::Going => {}
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
