//! Checks between rounds, during a sleep, and when everything was released.

use larder_cuda::{DeviceAllocError, SleepError};

use super::player::{Outcome, Player};
use super::stamps::take_wrong;
use super::{PLAYERS, Run};
use crate::common::MIB;
use larder_core::StreamId;

/// Sizes of tables while nothing is held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    events: u64,
    chunks: usize,
    reservations: u64,
    /// Bytes of the whole process.
    resident: u64,
}

impl Sizes {
    /// Compares with those of the warm-up, or belongs to it.
    pub(super) fn take(&mut self, now: Self, is_warm_up: bool) -> Outcome {
        if is_warm_up {
            *self = Self {
                events: self.events.max(now.events),
                chunks: self.chunks.max(now.chunks),
                reservations: self.reservations.max(now.reservations),
                resident: self.resident.max(now.resident),
            };
            return Ok(());
        }
        let is_more = now.events > 2 * self.events + 64
            || now.chunks > 2 * self.chunks + 16
            || now.reservations > self.reservations
            || now.resident > self.resident + 256 * MIB;
        match is_more {
            true => Err(format!("it grows: {self:?} in the warm-up, {now:?} now").into()),
            false => Ok(()),
        }
    }
}

/// Memory of this process; 0 where the system does not tell.
fn resident() -> u64 {
    let said = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = said.split(' ').nth(1).and_then(|word| word.parse().ok());
    pages.unwrap_or(0) * 4096
}

fn is(what: &str, found: u64, wanted: u64) -> Outcome {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{what}: {found}, and not {wanted}").into()),
    }
}

impl Run {
    fn alive(&self, kind: &str) -> (u64, u64) {
        let alive = self.control.alive();
        let found = alive.iter().find(|alive| alive.kind == kind);
        found.map_or((0, 0), |alive| (alive.count, alive.bytes))
    }

    /// Checks whatever holds while no thread works.
    pub(super) fn check(&self) -> Outcome {
        let mut wrong = take_wrong();
        wrong.extend(self.control.findings());
        if let Some(first) = wrong.first() {
            return Err(first.clone().into());
        }
        let world = &self.world;
        world.context.cudarc().check_err()?;
        is("owed", world.context.settle() as u64, 0)?;
        let held = self.players.iter().flat_map(|player| &player.held);
        let held: u64 = held.map(|held| held.block.bytes()).sum();
        let live = world.memory.stats().live_bytes;
        if live < held {
            return Err(format!("{live} bytes are live, and players hold {held}").into());
        }
        let pool = world.memory.pool_stats().pool_bytes;
        let (_, handles) = self.alive("handle");
        is("bytes of handles", handles, pool)?;
        is(
            "bytes of the device",
            self.control.used(0),
            pool + self.base_bytes,
        )?;
        let pinned = world.pinned.pool_stats().pool_bytes;
        is("pinned bytes", self.alive("pinned").1, pinned)?;
        is(
            "bytes of the budget",
            world.tenant.usage().used_bytes,
            pool + pinned,
        )?;
        let streams = self.alive("stream").0;
        let most = PLAYERS * 12 + StreamId::COUNT as u64;
        match streams > most {
            true => Err(format!("{streams} streams are there").into()),
            false => self.check_chunks(),
        }
    }

    /// Chunks lie side by side, and are as much as the counters say.
    fn check_chunks(&self) -> Outcome {
        let snapshot = self.world.memory.snapshot();
        let pairs = snapshot.chunks.windows(2);
        for pair in pairs {
            if pair[0].range.end() > pair[1].range.start() {
                return Err(format!("chunks overlap: {pair:?}").into());
            }
        }
        Ok(())
    }

    /// Sleeps and wakes; every block holds what it held.
    pub(super) fn sleep(&mut self) -> Outcome {
        let slept = self.world.memory.sleep();
        slept.map_err(|error| format!("sleep: {error}"))?;
        is("asleep, owed", self.world.context.settle() as u64, 0)?;
        is("asleep, the device", self.control.used(0), self.base_bytes)?;
        for player in &mut self.players {
            match self.world.memory.alloc(&player.order.streams[0], 100) {
                Err(DeviceAllocError::Asleep) => {}
                other => return Err(format!("asleep, an allocation gave {other:?}").into()),
            }
            if self.random.index(3) == 0 {
                player.free()?;
            }
        }
        if self.random.index(4) == 0 {
            let _ = self.world.memory.set_limit(MIB);
        }
        match self.world.memory.wake() {
            Ok(_) => {}
            Err(SleepError::Budget(_)) => {
                self.raise_limits();
                let woken = self.world.memory.wake();
                woken.map_err(|error| format!("wake: {error}"))?;
            }
            Err(error) => return Err(format!("wake: {error}").into()),
        }
        for held in self.players.iter_mut().flat_map(|player| &mut player.held) {
            held.value = held.value.filter(|_| !held.remakable);
        }
        self.players.iter_mut().try_for_each(Player::check_all)
    }

    fn raise_limits(&self) {
        let _ = self.world.tenant.set(1 << 40);
        let _ = self.world.memory.set_limit(u64::MAX);
        let _ = self.world.pinned.set_limit(u64::MAX);
    }

    /// Releases everything. Returns the objects that exist then.
    pub(super) fn quiet(&mut self) -> Outcome<Sizes> {
        while !self.world.parcels.lock().unwrap().is_empty() {
            self.players[0].receive()?;
        }
        self.players.iter_mut().try_for_each(Player::let_go)?;
        // Events are recorded where something was freed, and pass.
        let _ = self.world.memory.release(0);
        self.world.context.synchronize()?;
        let _ = self.world.memory.release(u64::MAX);
        let _ = self.world.pinned.release();
        self.check()?;
        let stats = self.world.memory.stats();
        is("live bytes", stats.live_bytes, 0)?;
        is("live pinned bytes", self.world.pinned.stats().live_bytes, 0)?;
        is("bytes held", self.world.memory.pool_stats().pool_bytes, 0)?;
        is(
            "pinned bytes held",
            self.world.pinned.stats().reserved_bytes,
            0,
        )?;
        for kind in ["mapping", "handle", "pinned", "graph", "exec"] {
            is(kind, self.alive(kind).0, 0)?;
        }
        self.raise_limits();
        if self.kind.deferred {
            // Another order for what comes.
            self.control.schedule_deferred(self.random.next_u64());
        }
        Ok(Sizes {
            events: self.alive("event").0,
            chunks: self.world.memory.snapshot().chunks.len(),
            reservations: self.alive("reservation").0,
            resident: resident(),
        })
    }
}
