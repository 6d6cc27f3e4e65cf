//! A slow, obvious LRU pool: one vector of idle buffers, oldest first, which is scanned for every question.
//!
//! It has its own [`Source`], with the same history as the real pool's, so it predicts addresses too.

use larder_core::pool::{PoolConfig, PoolCounters};
use larder_core::{AddrRange, Align, GrowRequest, Request, SubAllocator};

use crate::Source;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) range: AddrRange,
    pub(crate) bytes: u64,
    /// The step in which the buffer became idle.
    pub(crate) step: u32,
    /// Whether the sub-allocator refused to release the buffer.
    pub(crate) stuck: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) held: Held,
    pub(crate) requested_bytes: u64,
}

/// The part of an answer that the model predicts: the block's address, or an error in words.
pub(crate) type Answer = Result<u64, String>;

pub(crate) struct ModelPool {
    pub(crate) config: PoolConfig,
    pub(crate) records: usize,
    pub(crate) limit: u32,
    /// All idle buffers, stuck ones included, in the order in which they became idle.
    pub(crate) kept: Vec<Held>,
    pub(crate) out: Vec<Out>,
    pub(crate) counters: PoolCounters,
    /// Evicted sizes, each with its number of evictions, the latest last.
    pub(crate) ghosts: Vec<(u64, u32)>,
    pub(crate) step: u32,
    pub(crate) source: Source,
}

impl ModelPool {
    pub(crate) fn new(config: PoolConfig, records: usize, source: Source) -> Self {
        Self {
            config,
            records,
            limit: config.limit_buffers,
            kept: Vec::new(),
            out: Vec::new(),
            counters: PoolCounters::default(),
            ghosts: Vec::new(),
            step: 0,
            source,
        }
    }

    fn buffer_bytes(&self, bytes: u64, align: Align) -> u64 {
        let own = self.config.align.bytes();
        let total = bytes + align.bytes().saturating_sub(own);
        let steps = 1u64 << self.config.steps_log2;
        let classes = (0..20).flat_map(|k| {
            let from = 1u64 << k;
            (0..steps).map(move |i| from * steps + i * from)
        });
        // Sizes are multiplied by `steps` here, so that fractional sizes in small doublings can be left out.
        let whole = classes.filter(|size| size.is_multiple_of(steps));
        let mut fits = whole.map(|size| size / steps);
        let rounded = fits.find(|size| *size >= total).unwrap_or(0);
        rounded.next_multiple_of(own)
    }

    pub(crate) fn alloc(&mut self, request: &Request) -> Answer {
        if request.bytes == 0 {
            return Err("zero".into());
        }
        let bytes = self.buffer_bytes(request.bytes, request.align);
        let found = self.take_kept(bytes);
        let counts = u64::from(self.limit > 0);
        if let Some(held) = found {
            self.counters.from_pool += counts;
            return Ok(self.give(held, request));
        }
        while self.is_full() && self.is_any_idle() {
            let oldest = self.take_oldest_idle();
            self.release(oldest);
        }
        if self.is_full() {
            for held in self.take_stuck() {
                self.release(held);
            }
        }
        if self.is_full() {
            return Err("table".into());
        }
        self.counters.allocated += counts;
        self.note_miss(bytes);
        let wish = GrowRequest {
            bytes: bytes.next_multiple_of(self.config.align.bytes()),
            align: self.config.align,
            at: None,
        };
        let mut got = self.source.grow(wish);
        if got.is_err() && !self.kept.is_empty() {
            self.trim();
            got = self.source.grow(wish);
        }
        match got {
            Ok(range) => Ok(self.give(
                Held {
                    range,
                    bytes,
                    step: 0,
                    stuck: false,
                },
                request,
            )),
            Err(_) => Err(format!(
                "memory {} {} {} {}",
                request.bytes,
                bytes,
                self.reserved_bytes(),
                self.free_bytes()
            )),
        }
    }

    fn take_kept(&mut self, bytes: u64) -> Option<Held> {
        let place = self.kept.iter().rposition(|held| held.bytes == bytes);
        place.map(|place| self.kept.remove(place))
    }

    fn give(&mut self, held: Held, request: &Request) -> u64 {
        let start = held.range.start().get();
        self.out.push(Out {
            held,
            requested_bytes: request.bytes,
        });
        start.next_multiple_of(request.align.bytes())
    }

    pub(crate) fn free(&mut self, which: usize) {
        let held = self.out.remove(which).held;
        if self.limit == 0 {
            return self.release(held);
        }
        self.counters.put += 1;
        if held.range.bytes() > self.config.limit_bytes {
            self.counters.evicted += 1;
            return self.release(held);
        }
        self.keep(held, false);
        let mut victims = Vec::new();
        while self.idle().count() > self.limit as usize
            || self.idle_bytes() > self.config.limit_bytes
        {
            let too_many = self.idle().count() > self.limit as usize;
            let victim = self.take_oldest_idle();
            if too_many {
                self.note_eviction(victim.bytes);
            }
            self.counters.evicted += 1;
            victims.push(victim);
        }
        victims.into_iter().for_each(|victim| self.release(victim));
    }

    fn note_eviction(&mut self, bytes: u64) {
        let known = self.ghosts.iter().position(|ghost| ghost.0 == bytes);
        let before = known.map_or(0, |place| self.ghosts.remove(place).1);
        self.ghosts.push((bytes, before + 1));
        if self.ghosts.len() > 32 {
            self.ghosts.remove(0);
        }
    }

    fn note_miss(&mut self, bytes: u64) {
        let Some(ghost) = self.ghosts.iter_mut().find(|ghost| ghost.0 == bytes) else {
            return;
        };
        ghost.1 -= 1;
        self.ghosts.retain(|ghost| ghost.1 > 0);
        if self.limit < self.config.max_buffers && (self.limit as usize) < self.records {
            self.limit += 1;
        }
    }

    pub(crate) fn end_step(&mut self) {
        self.step += 1;
        let mut leaving = self.take_stuck();
        if let Some(age) = self.config.age_steps {
            while self
                .idle()
                .next()
                .is_some_and(|held| self.step - held.step >= age.get())
            {
                leaving.push(self.take_oldest_idle());
                if self.limit > self.config.limit_buffers {
                    self.limit -= 1;
                }
            }
        }
        leaving.into_iter().for_each(|held| self.release(held));
    }

    pub(crate) fn trim(&mut self) {
        let mut leaving = self.take_stuck();
        leaving.append(&mut self.kept);
        leaving.into_iter().for_each(|held| self.release(held));
    }

    pub(crate) fn clear(&mut self) {
        self.counters = PoolCounters::default();
        self.ghosts.clear();
        self.trim();
    }

    /// Sets the limits. Returns whether they were valid.
    pub(crate) fn set_limits(&mut self, buffers: u32, bytes: u64) -> bool {
        if buffers == 0 && self.config.max_buffers > 0 {
            return false;
        }
        self.config.limit_buffers = buffers;
        self.config.limit_bytes = bytes;
        self.limit = buffers;
        let mut victims = Vec::new();
        while self.idle().count() > buffers as usize || self.idle_bytes() > bytes {
            victims.push(self.take_oldest_idle());
        }
        victims.into_iter().for_each(|victim| self.release(victim));
        true
    }

    fn release(&mut self, held: Held) {
        if self.source.release(held.range).is_err() {
            self.keep(held, true);
        }
    }

    fn is_full(&self) -> bool {
        self.out.len() + self.kept.len() == self.records
    }

    fn keep(&mut self, held: Held, stuck: bool) {
        self.kept.push(Held {
            step: self.step,
            stuck,
            ..held
        });
    }

    pub(crate) fn idle(&self) -> impl Iterator<Item = &Held> {
        self.kept.iter().filter(|held| !held.stuck)
    }

    fn is_any_idle(&self) -> bool {
        self.idle().next().is_some()
    }

    pub(crate) fn idle_bytes(&self) -> u64 {
        self.idle().map(|held| held.range.bytes()).sum()
    }

    fn take_oldest_idle(&mut self) -> Held {
        let place = self.kept.iter().position(|held| !held.stuck);
        self.kept
            .remove(place.expect("only asked where one is idle"))
    }

    fn take_stuck(&mut self) -> Vec<Held> {
        let (stuck, idle) = self.kept.iter().partition(|held| held.stuck);
        self.kept = idle;
        stuck
    }

    fn free_bytes(&self) -> u64 {
        self.kept.iter().map(|held| held.range.bytes()).sum()
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        let out: u64 = self.out.iter().map(|out| out.held.range.bytes()).sum();
        self.free_bytes() + out
    }
}
