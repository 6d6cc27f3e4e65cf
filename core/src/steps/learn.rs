//! The end of a step: the shape that it teaches, and whether the next steps are observed.

use super::Steps;
use super::follow::StepState;
use super::shape::{Entry, Shape, ShapeId};

/// Binary logarithm of the maximum number of steps skipped, in units of the first number.
const MAX_SKIP_LOG2: u32 = 5;

impl Steps<'_> {
    /// Learns the step that has ended. Returns its shape.
    pub(super) fn learn(&mut self, state: StepState) -> Option<ShapeId> {
        let asked = &self.asked[..self.count as usize];
        let inherited = &mut self.inherited[..self.inherited_count as usize];
        inherited.sort_unstable_by_key(Entry::position);
        let followed = match state {
            StepState::Follows(way) => Some(way),
            _ => None,
        };
        let is_first = self.shapes.used() == 0;
        let exact = self.shapes.find(asked, self.key);
        let known = exact.or_else(|| {
            let shape = followed?.shape;
            self.shapes.begins_with(shape, asked).then_some(shape)
        });
        match known {
            Some(id) => {
                self.stats.known_steps += 1;
                self.trust.note(self.shapes.keeps_lives(id, asked));
                if let Some(way) = followed {
                    self.served = way.layout.is_some();
                    if way.guessed && way.shape == id {
                        self.guesses.note(true);
                    }
                }
            }
            None => self.trust.steady = 0,
        }
        if let Some(id) = exact
            && self.shapes.learn(id, asked, inherited)
        {
            for layout in &mut self.shapes.get_mut(id).layouts {
                layout.fingerprint = 0;
            }
        }
        let id = known.or_else(|| {
            let shape = Shape {
                key: self.key,
                seen: self.step,
                ..Shape::EMPTY
            };
            let removed = &mut self.stats.forgotten_shapes;
            let id = self.shapes.add(shape, asked, inherited, removed);
            // A shape in the slot of one that was removed to make room is a different shape.
            let shapes = &self.shapes;
            let stays = |shape: &ShapeId| Some(*shape) != id && shapes.get(*shape).seen > 0;
            self.first = self.first.filter(stays);
            self.last = self.last.filter(stays);
            id
        });
        if let Some(id) = id.filter(|_| known.is_none()) {
            self.forget_beginnings(id);
        }
        if let Some(id) = id {
            let shape = self.shapes.get_mut(id);
            shape.seen = self.step;
            shape.confirmed = true;
            shape.peak = shape.peak.max(self.peak);
            if let Some(last) = self.last {
                self.shapes.note_successor(last, id);
            }
        }
        if is_first {
            self.first = id;
        }
        id
    }

    /// Forgets the shapes that are the beginning of this one, which serves their steps, too.
    fn forget_beginnings(&mut self, id: ShapeId) {
        for other in self.shapes.ids() {
            let shape = self.shapes.get(other);
            if other != id
                && shape.seen > 0
                && shape.key == self.key
                && self.shapes.begins_with(id, self.shapes.entries(other))
            {
                self.shapes.replace(other, id);
                self.first = self
                    .first
                    .map(|first| if first == other { id } else { first });
                self.last = self.last.map(|last| if last == other { id } else { last });
            }
        }
    }

    /// Decides from the step that has ended whether the next steps are skipped. A step gains if half of its blocks were
    /// allocated at their places.
    pub(super) fn weigh(&mut self, known: bool) {
        let hits = self.stats.hits - self.hits_before;
        if hits > 0 && hits * 2 >= u64::from(self.count) {
            self.gainless = self.gainless.saturating_sub(2);
            if self.gainless == 0 {
                self.skip_log2 = 0;
            }
            return;
        }
        let hopeful = known && self.stats.rejected == self.rejected_before;
        self.gainless += if hopeful { 1 } else { 2 };
        let patience = self.config.patience.saturating_mul(2);
        if self.gainless >= patience {
            self.gainless = 0;
            self.skips = patience.saturating_mul(1 << self.skip_log2);
            self.skip_log2 = (self.skip_log2 + 1).min(MAX_SKIP_LOG2);
        }
    }
}
