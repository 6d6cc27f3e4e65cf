//! What is kept, what goes, and how the limits move.

use super::Pool;
use super::buffer::State;
use super::config::LimitGrowth;
use super::report::PoolCounters;
use crate::error::ConfigError;

/// TensorFlow tests its rates after so many evictions, and rates up to 1 in so many do not count.
const TENSORFLOW_EVICTIONS: u64 = 1000;
const TENSORFLOW_TOLERANCE: u64 = 500;

/// TensorFlow's first limit to grow to.
const TENSORFLOW_FIRST_LIMIT: u32 = 100;

impl Pool<'_> {
    /// Whether anything is kept and counted.
    pub(super) const fn keeps(&self) -> bool {
        self.limit_buffers > 0
    }

    /// Sets both limits; what is above them is to [leave](Self::take_leaving), the oldest first, and
    /// counts as no eviction. A limit that rose by itself begins anew here.
    ///
    /// # Errors
    /// [`ConfigError::PoolLimit`] if a limit of 0 should grow; nothing has changed then.
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

    /// Whether kept buffers should go back before this pool's allocation fails; lets them go if so.
    pub(super) fn give_back_for_growth(&mut self) -> bool {
        self.config.give_back && self.trim()
    }

    /// A block came back.
    pub(super) fn kept_or_evicted(&mut self, link: u32) {
        if !self.keeps() {
            return self.leave(link);
        }
        self.counters.put += 1;
        if self.buffers.at(link).held_bytes > self.config.limit_bytes {
            // It would push all others out and then go itself.
            self.leave(link);
            return self.evicted();
        }
        self.keep(link, State::Idle);
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
        if for_buffers && matches!(self.config.growth, LimitGrowth::Returning { .. }) {
            self.ghosts.remember(bytes);
        }
        self.evicted();
    }

    /// Counts an eviction, and makes TensorFlow's test.
    fn evicted(&mut self) {
        self.counters.evicted += 1;
        let PoolCounters {
            from_pool,
            put,
            allocated,
            evicted,
        } = self.counters;
        if self.config.growth != LimitGrowth::BothRates
            || !evicted.is_multiple_of(TENSORFLOW_EVICTIONS)
        {
            return;
        }
        let exceeds = |part: u64, whole: u64| {
            u128::from(part) * u128::from(TENSORFLOW_TOLERANCE) > u128::from(whole)
        };
        if exceeds(evicted, put) && exceeds(allocated, allocated + from_pool) {
            self.limit_buffers = if self.limit_buffers < TENSORFLOW_FIRST_LIMIT {
                TENSORFLOW_FIRST_LIMIT
            } else {
                let grown = u64::from(self.limit_buffers) * 11 / 10;
                u32::try_from(grown).unwrap_or(u32::MAX)
            };
            self.counters = PoolCounters::default();
        }
    }

    /// No buffer of this size was kept.
    pub(super) fn missed(&mut self, bytes: u64) {
        let LimitGrowth::Returning { max_buffers } = self.config.growth else {
            return;
        };
        // The limit can stand above `max_buffers` if it was set there: it stays.
        let max = max_buffers.min(self.buffers.capacity());
        if self.ghosts.take(bytes) && self.limit_buffers < max {
            self.limit_buffers += 1;
        }
    }

    /// Enters a buffer that stands in no list as kept.
    pub(super) fn keep(&mut self, link: u32, state: State) {
        let record = self.buffers.at_mut(link);
        record.state = state;
        record.step = self.step;
        if state == State::Idle {
            self.idle_bytes += record.held_bytes;
            self.buffers.push(&mut self.idle, link);
        } else {
            self.buffers.push(&mut self.stuck, link);
        }
        self.sizes.insert(&mut self.buffers, link);
    }

    /// Takes a kept buffer out of its list and its size.
    pub(super) fn take_out(&mut self, link: u32) {
        self.sizes.remove(&mut self.buffers, link);
        let record = self.buffers.at(link);
        if record.state == State::Idle {
            self.idle_bytes -= record.held_bytes;
            self.buffers.unlink(&mut self.idle, link);
        } else {
            self.buffers.unlink(&mut self.stuck, link);
        }
    }

    /// Lets a buffer that stands in no list go.
    fn leave(&mut self, link: u32) {
        self.buffers.at_mut(link).state = State::Leaving;
        self.buffers.push(&mut self.leaving, link);
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
