//! What is kept, what goes, and how the limits move.

use super::Pool;
use super::buffer::{BufferState, OfState};
use super::report::PoolCounters;
use crate::error::ConfigError;

impl Pool {
    /// Whether anything is kept and counted.
    pub(super) const fn keeps(&self) -> bool {
        self.limit_buffers > 0
    }

    /// Sets both limits; what is above them is to [leave](Self::take_leaving), the oldest first, and
    /// counts as no eviction. A limit that rose by itself begins anew here.
    ///
    /// # Errors
    /// [`ConfigError::PoolLimit`] if a limit of 0 should rise; nothing has changed then.
    pub fn set_limits(&mut self, buffers: u32, bytes: u64) -> Result<(), ConfigError> {
        self.config.validate(buffers)?;
        self.config.limit_buffers = buffers;
        self.config.limit_bytes = bytes;
        self.limit_buffers = buffers;
        while self.idle.count > buffers || self.idle_bytes > bytes {
            self.let_oldest_go();
        }
        Ok(())
    }

    /// A step of the program has ended. With [`age_steps`](super::PoolConfig::age_steps) what was idle
    /// that long is to [leave](Self::take_leaving), and a limit that rose comes down by as many, to
    /// where it began at least. Stuck buffers are offered again. O(what leaves).
    pub fn end_step(&mut self) {
        self.step = self.step.wrapping_add(1);
        self.offer_stuck();
        let Some(age) = self.config.age_steps else {
            return;
        };
        while self.idle.oldest != 0 {
            let since = self.buffers.at(self.idle.oldest).step;
            if self.step.wrapping_sub(since) < age.get() {
                break;
            }
            self.let_oldest_go();
            if self.limit_buffers > self.config.limit_buffers {
                self.limit_buffers -= 1;
            }
        }
    }

    /// All that is kept is to [leave](Self::take_leaving); no counter moves. O(what is kept). Whether
    /// anything is to leave, now or already.
    pub fn trim(&mut self) -> bool {
        self.offer_stuck();
        while self.idle.count > 0 {
            self.let_oldest_go();
        }
        self.leaving.count > 0
    }

    /// Lets all that is kept [leave](Self::take_leaving), and sets the counters to 0. The limit stays as
    /// far as it rose.
    pub fn clear(&mut self) {
        self.trim();
        self.counters = PoolCounters::default();
        self.ghosts.forget();
    }

    /// Lets the oldest idle buffer go, so that its record is there for another; whether there was one.
    /// For an allocation that found the table full.
    pub fn make_room(&mut self) -> bool {
        let any = self.idle.count > 0;
        if any {
            self.let_oldest_go();
        }
        any
    }

    /// A block came back.
    pub(super) fn kept_or_evicted(&mut self, link: u32) {
        if !self.keeps() {
            return self.leave(link);
        }
        self.counters.put += 1;
        if self.buffers.at(link).held_bytes > self.config.limit_bytes {
            // It would push all others out and then go itself.
            self.counters.evicted += 1;
            return self.leave(link);
        }
        self.keep(link, BufferState::Idle);
        while self.is_above_limit() {
            self.evict_oldest();
        }
    }

    const fn is_above_limit(&self) -> bool {
        self.idle.count > self.limit_buffers || self.idle_bytes > self.config.limit_bytes
    }

    fn evict_oldest(&mut self) {
        // Had the bytes been the reason, more buffers would not help.
        let for_buffers = self.idle.count > self.limit_buffers;
        let bytes = self.buffers.at(self.idle.oldest).bytes;
        self.let_oldest_go();
        if for_buffers {
            self.ghosts.remember(bytes);
        }
        self.counters.evicted += 1;
    }

    /// No buffer of this size was kept.
    pub(super) fn missed(&mut self, bytes: u64) {
        // The limit can stand above `max_buffers` if it was set there: it stays.
        let max = self.config.max_buffers.min(self.buffers.capacity());
        if self.ghosts.take(bytes) && self.limit_buffers < max {
            self.limit_buffers += 1;
        }
    }

    /// Enters a buffer that stands in no list as kept.
    pub(super) fn keep(&mut self, link: u32, state: BufferState) {
        let record = self.buffers.at_mut(link);
        record.state = state;
        record.step = self.step;
        if state == BufferState::Idle {
            self.idle_bytes += record.held_bytes;
            self.idle.push::<OfState, _>(&mut self.buffers, link);
        } else {
            self.stuck.push::<OfState, _>(&mut self.buffers, link);
        }
        self.sizes.insert(&mut self.buffers, link);
    }

    /// Takes a kept buffer out of its list and its size.
    pub(super) fn take_out(&mut self, link: u32) {
        self.sizes.remove(&mut self.buffers, link);
        let record = self.buffers.at(link);
        if record.state == BufferState::Idle {
            self.idle_bytes -= record.held_bytes;
            self.idle.unlink::<OfState, _>(&mut self.buffers, link);
        } else {
            self.stuck.unlink::<OfState, _>(&mut self.buffers, link);
        }
    }

    /// Lets a buffer that stands in no list go.
    fn leave(&mut self, link: u32) {
        self.buffers.at_mut(link).state = BufferState::Leaving;
        self.leaving.push::<OfState, _>(&mut self.buffers, link);
    }

    fn let_oldest_go(&mut self) {
        let link = self.idle.oldest;
        self.take_out(link);
        self.leave(link);
    }

    /// Offers what was refused again; whether there was any. O(stuck buffers).
    pub(super) fn offer_stuck(&mut self) -> bool {
        let any = self.stuck.count > 0;
        while self.stuck.count > 0 {
            let link = self.stuck.oldest;
            self.take_out(link);
            self.leave(link);
        }
        any
    }
}
