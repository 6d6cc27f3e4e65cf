//! Decides which buffers are cached and which are released, and moves the limits.

use super::Pool;
use super::buffer::{BufferState, OfState};
use super::report::PoolCounters;
use crate::error::ConfigError;

impl Pool {
    /// Returns whether buffers are cached and counted.
    pub(super) const fn keeps(&self) -> bool {
        self.limit_buffers > 0
    }

    /// Sets both limits. Buffers above them [leave](Self::take_leaving), the oldest first, and do not count as
    /// evictions. A limit that has risen by itself starts again from the new value.
    ///
    /// # Errors
    /// [`ConfigError::PoolLimit`] if a limit of 0 is configured to rise; nothing has changed then.
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

    /// Ends a step of the program, and tries the release of stuck buffers again. If
    /// [`age_steps`](super::PoolConfig::age_steps) is set, buffers that were idle for that many steps
    /// [leave](Self::take_leaving), and a limit that has risen falls by their number, but not below its initial value.
    /// O(leaving buffers).
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

    /// Lets all cached buffers [leave](Self::take_leaving), and changes no counter. Returns whether any buffer is now
    /// leaving. O(cached buffers).
    pub fn trim(&mut self) -> bool {
        self.offer_stuck();
        while self.idle.count > 0 {
            self.let_oldest_go();
        }
        self.leaving.count > 0
    }

    /// Lets all cached buffers [leave](Self::take_leaving), and sets the counters to 0. A limit that has risen stays.
    pub fn clear(&mut self) {
        self.trim();
        self.counters = PoolCounters::default();
        self.ghosts.forget();
    }

    /// Lets the oldest idle buffer leave, so that its record becomes vacant. Returns whether there was one. For use
    /// after an allocation that found the table full.
    pub fn make_room(&mut self) -> bool {
        let any = self.idle.count > 0;
        if any {
            self.let_oldest_go();
        }
        any
    }

    /// Caches or evicts the buffer of a freed block.
    pub(super) fn kept_or_evicted(&mut self, link: u32) {
        if !self.keeps() {
            return self.leave(link);
        }
        self.counters.put += 1;
        if self.buffers.at(link).held_bytes > self.config.limit_bytes {
            // If cached, the buffer would evict all others and then leave, too.
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
        // If the limit of bytes is the reason, a higher limit of buffers would not help.
        let for_buffers = self.idle.count > self.limit_buffers;
        let bytes = self.buffers.at(self.idle.oldest).bytes;
        self.let_oldest_go();
        if for_buffers {
            self.ghosts.remember(bytes);
        }
        self.counters.evicted += 1;
    }

    /// Notes that no buffer of this size was cached.
    pub(super) fn missed(&mut self, bytes: u64) {
        // A limit that was set above `max_buffers` stays there.
        let max = self.config.max_buffers.min(self.buffers.capacity());
        if self.ghosts.take(bytes) && self.limit_buffers < max {
            self.limit_buffers += 1;
        }
    }

    /// Caches a buffer that is in no list.
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

    /// Removes a cached buffer from the lists of its state and its size.
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

    /// Lets a buffer that is in no list leave.
    fn leave(&mut self, link: u32) {
        self.buffers.at_mut(link).state = BufferState::Leaving;
        self.leaving.push::<OfState, _>(&mut self.buffers, link);
    }

    fn let_oldest_go(&mut self) {
        let link = self.idle.oldest;
        self.take_out(link);
        self.leave(link);
    }

    /// Lets all stuck buffers leave again. Returns whether there were any. O(stuck buffers).
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
