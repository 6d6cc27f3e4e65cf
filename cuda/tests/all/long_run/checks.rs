//! Checks between rounds, during a sleep, and when everything has been released.

use larder_core::StreamId;
use larder_cuda::driver::StandIn;
use larder_cuda::{DeviceAllocError, SleepError};

use super::{PLAYERS, Run};
use crate::common::MIB;
use crate::programs::words::Outcome;

/// Sizes of tables while no memory is held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    events: u64,
    chunks: usize,
    reservations: u64,
    /// Resident bytes of the whole process.
    resident: u64,
}

impl Sizes {
    /// In the warm-up, raises the sizes to the maximum seen. Later, fails if they have grown much since.
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

/// Returns the resident bytes of this process, or 0 if the system does not report them.
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

pub(super) fn alive(control: &StandIn, kind: &str) -> (u64, u64) {
    let alive = control.alive();
    let found = alive.iter().find(|alive| alive.kind == kind);
    found.map_or((0, 0), |alive| (alive.count, alive.bytes))
}

impl Run {
    /// Checks everything that must be true while no thread works.
    pub(super) fn check(&self) -> Outcome {
        if let Some(first) = self.control.findings().first() {
            return Err(first.clone().into());
        }
        let (context, memory) = (&self.world.context, self.players[0].0.memory()?);
        context.cudarc().check_err()?;
        is("owed", context.settle() as u64, 0)?;
        let device = self.memory()?;
        let held = self
            .players
            .iter()
            .flat_map(|(player, _)| player.blocks.values());
        let held: u64 = held.map(|held| held.block.bytes()).sum();
        let live = device.stats().live_bytes;
        if live < held {
            return Err(format!("{live} bytes are live, and players hold {held}").into());
        }
        let pool = device.pool_stats().pool_bytes;
        let pinned = memory
            .pinned
            .as_ref()
            .map_or(0, |pinned| pinned.pool_stats().pool_bytes);
        let [base, base_pinned] = self.base_bytes;
        is("bytes of handles", alive(self.control, "handle").1, pool)?;
        is("bytes of the device", self.control.used(0), pool + base)?;
        is(
            "pinned bytes",
            alive(self.control, "pinned").1,
            pinned + base_pinned,
        )?;
        let used = memory.budgets["t"].usage().used_bytes;
        is("bytes of the budget", used, pool + pinned)?;
        let streams = alive(self.control, "stream").0;
        let most = PLAYERS * 12 + StreamId::COUNT;
        match streams > most as u64 {
            true => Err(format!("{streams} streams are there").into()),
            false => memory.check(false, std::iter::empty()),
        }
    }

    /// Sleeps and wakes. Every block must keep its bytes.
    pub(super) fn sleep(&mut self) -> Outcome {
        let device = self.memory()?;
        device.sleep().map_err(|error| format!("sleep: {error}"))?;
        is("asleep, owed", self.world.context.settle() as u64, 0)?;
        is(
            "asleep, the device",
            self.control.used(0),
            self.base_bytes[0],
        )?;
        for (player, draw) in &mut self.players {
            player.asleep.insert("m".to_owned());
            match device.alloc(&player.order.streams[0], 100) {
                Err(DeviceAllocError::Asleep) => {}
                other => return Err(format!("asleep, an allocation gave {other:?}").into()),
            }
            player.act(&format!("free b{}", draw.random.index(8)))?;
        }
        if self.random.index(4) == 0 {
            let _ = device.set_limit(MIB);
        }
        match device.wake() {
            Ok(_) => {}
            Err(SleepError::Budget(_)) => {
                self.players[0].0.raise_limits()?;
                let woken = device.wake();
                woken.map_err(|error| format!("wake: {error}"))?;
            }
            Err(error) => return Err(format!("wake: {error}").into()),
        }
        self.players.iter_mut().try_for_each(|(player, _)| {
            player.asleep.clear();
            player.forget_remakable();
            player.check_all()
        })
    }

    /// Releases everything. Returns the sizes of the tables at that point.
    pub(super) fn quiet(&mut self) -> Outcome<Sizes> {
        while !self.world.mail.lock().unwrap().is_empty() {
            self.players[0].0.act("receive b0 a")?;
        }
        let device = self.memory()?;
        let pinned = self.players[0]
            .0
            .memory()?
            .pinned
            .clone()
            .ok_or("pinned memory")?;
        for (player, _) in &mut self.players {
            player.let_go()?;
            // Dropped pinned buffers hold the streams that used them until those streams are known to have passed.
            self.world.context.synchronize()?;
            let _ = pinned.release();
            player.finish_reads()?;
            player.forget_left()?;
        }
        // Records events for the memory that was freed, and waits for them.
        let _ = device.release(0);
        self.world.context.synchronize()?;
        let _ = device.release(u64::MAX);
        let _ = pinned.release();
        self.check()?;
        is("live bytes", device.stats().live_bytes, 0)?;
        is("live pinned bytes", pinned.stats().live_bytes, 0)?;
        is("bytes held", device.pool_stats().pool_bytes, 0)?;
        is("pinned bytes held", pinned.stats().reserved_bytes, 0)?;
        for kind in ["mapping", "handle", "graph", "exec"] {
            is(kind, alive(self.control, kind).0, 0)?;
        }
        self.players[0].0.raise_limits()?;
        if self.is_deferred {
            // The rest runs in another order.
            self.control.schedule_deferred(self.random.next_u64());
        }
        Ok(Sizes {
            events: alive(self.control, "event").0,
            chunks: device.snapshot().chunks.len(),
            reservations: alive(self.control, "reservation").0,
            resident: resident(),
        })
    }
}
