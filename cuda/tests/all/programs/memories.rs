//! [`Memory`], an allocator of a program, and the acts on allocators, limits and budgets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::limits::{LimitAnswer, LimitEventKind};
use larder_core::{Block, ChunkState, Placement, PoolStats};
use larder_cuda::{
    ArenaPolicy, Budget, DeviceAllocError, DeviceAllocator, DeviceConfig, HostSide, LimitEvent,
    Limits, PinnedAllocator, PinnedConfig, StreamAllocator, VmemAllocator, VmemConfig,
};

use crate::common::MIB;
use crate::programs::player::{Held, Player, World};
use crate::programs::things::Thing;
use crate::programs::words::{Missing, Outcome, Words, number};

/// The kinds of events that watchers have seen, oldest first.
pub(crate) type Seen = Arc<Mutex<Vec<LimitEventKind>>>;

/// Budgets by name: `process` and its tenants.
pub(crate) type Budgets = BTreeMap<String, Budget>;

#[derive(Clone)]
pub(crate) struct Memory {
    /// The allocator of blocks: the device's, or one in front of it.
    pub(crate) front: Arc<dyn StreamAllocator>,
    pub(crate) device: Option<DeviceAllocator>,
    pub(crate) vmem: Option<VmemAllocator>,
    /// An allocator of pinned memory in the same budget.
    pub(crate) pinned: Option<PinnedAllocator>,
    pub(crate) budgets: Budgets,
}

impl Memory {
    pub(crate) fn of_device(device: DeviceAllocator) -> Self {
        Self {
            front: Arc::new(device.clone()),
            device: Some(device),
            vmem: None,
            pinned: None,
            budgets: Budgets::new(),
        }
    }

    pub(crate) fn of_front(front: Arc<dyn StreamAllocator>) -> Self {
        Self {
            front,
            device: None,
            vmem: None,
            pinned: None,
            budgets: Budgets::new(),
        }
    }

    /// Makes an allocator from its options: `budget=BYTES`, `limit=BYTES`, `arenas=always|never`, `unchecked` (does not
    /// check for captures), `shareable`, `in=BUDGET`, `pinned` (adds an allocator of pinned memory),
    /// `host=BYTES|managed|none` (adds a host side), `planned=PERCENT`.
    pub(crate) fn new(world: &World, budgets: &Budgets, words: &mut Words<'_>) -> Outcome<Self> {
        let mut config = DeviceConfig::new();
        let (mut host, mut budget, mut is_pinned) = (None, None, false);
        let mut planned = None;
        while let Some((key, value)) = words.option() {
            match key {
                "budget" => {
                    let bytes = number(value)?;
                    config.backing = DeviceConfig::with_budget(bytes).backing;
                    config.limit_bytes = bytes;
                }
                "limit" => config.limit_bytes = number(value)?,
                "arenas" => {
                    config.arenas = match value {
                        "always" => ArenaPolicy::Always,
                        "never" => ArenaPolicy::Never,
                        _ => ArenaPolicy::WhereThreadsMeet,
                    }
                }
                "unchecked" => config.check_captures = false,
                "shareable" => config.shareable = true,
                "in" => budget = Some(budgets.get(value).ok_or("no such budget")?),
                "pinned" => is_pinned = true,
                "planned" => planned = Some(number(value)? as u32),
                "host" => {
                    host = Some(match value {
                        "none" => HostSide::None,
                        "managed" => HostSide::Managed,
                        bytes => HostSide::Pinned(number(bytes)?),
                    });
                }
                other => return Err(format!("memory: {other}").into()),
            }
        }
        let context = &world.context;
        let device = match budget {
            Some(budget) => DeviceAllocator::in_budget(context, config, budget)?,
            None => DeviceAllocator::with_config(context, config)?,
        };
        let mut memory = Self::of_device(device.clone());
        if is_pinned {
            let config = PinnedConfig::default();
            memory.pinned = Some(match budget {
                Some(budget) => PinnedAllocator::in_budget(context, config, u64::MAX, budget)?,
                None => PinnedAllocator::with_limit(context, config, u64::MAX)?,
            });
        }
        if let Some(host) = host {
            let mut config = VmemConfig::new(host);
            config.planned_percent = planned.unwrap_or(config.planned_percent);
            let vmem = VmemAllocator::new(&device, config)?;
            memory.front = Arc::new(vmem.clone());
            memory.vmem = Some(vmem);
        }
        memory.budgets = budgets.clone();
        Ok(memory)
    }

    pub(crate) fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
    ) -> Result<Block, DeviceAllocError> {
        match (&self.device, &self.vmem) {
            (Some(device), None) => device.alloc(stream, bytes),
            _ => self.front.alloc(stream, bytes),
        }
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        match &self.vmem {
            Some(vmem) => vmem.vmem_stats().joint_live_bytes,
            None => self.front.stats().live_bytes,
        }
    }

    /// Checks that the chunks of a snapshot do not overlap. With `exact`, only the blocks in `held` exist; then the
    /// chunks must also agree with the counters, and the host side must count exactly the blocks on it.
    pub(crate) fn check<'a>(&self, exact: bool, held: impl Iterator<Item = &'a Held>) -> Outcome {
        if let Some(vmem) = self.vmem.as_ref().filter(|_| exact) {
            let on_host = |held: &&Held| vmem.placement(&held.block) == Placement::Host;
            let bytes: u64 = held.filter(on_host).map(|held| held.block.bytes()).sum();
            let live = vmem.vmem_stats().host.live_bytes;
            if live != bytes {
                return Err(format!("{live} bytes live on the host, and {bytes} held").into());
            }
        }
        let Some(device) = &self.device else {
            return Ok(());
        };
        let snapshot = device.snapshot();
        let mut pairs = snapshot.chunks.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[0].range.end() > pair[1].range.start()) {
            return Err(format!("chunks overlap: {pair:?}").into());
        }
        let used = snapshot.chunks.iter();
        let used = used.filter(|chunk| matches!(chunk.state, ChunkState::Used { .. }));
        let used: u64 = used.map(|chunk| chunk.range.bytes()).sum();
        let live = snapshot.stats.live_bytes;
        let arenas: u64 = snapshot.streams.iter().map(|one| one.arena_bytes).sum();
        // The used chunks include all memory of arenas, but only the blocks in arenas are live.
        match !exact || (used >= live && used - live <= arenas) {
            true => Ok(()),
            false => Err(format!("{used} bytes in chunks, {live} live, {arenas} in arenas").into()),
        }
    }
}

impl Player {
    /// `memory NAME …`: makes an allocator, which is the current one from then on, as after `use NAME`.
    pub(crate) fn make_memory(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let memory = Memory::new(&self.world, &self.budgets, words)?;
        self.add_memory(name, memory);
        Ok(())
    }

    pub(crate) fn add_memory(&mut self, name: &str, memory: Memory) {
        self.budgets = memory.budgets.clone();
        self.memories.insert(name.to_owned(), memory);
        name.clone_into(&mut self.current);
    }

    /// `forget NAME`: drops an allocator. The program's blocks of this allocator are lost.
    pub(crate) fn end_memory(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        self.blocks.retain(|_, held| held.memory != name);
        let memory = self.memories.remove(name);
        drop(memory.ok_or(Missing("the allocator"))?);
        self.asleep.remove(name);
        Ok(())
    }

    /// `tenant NAME BYTES [BUDGET]`: makes a budget below another. `process BYTES` makes the topmost one.
    pub(crate) fn tenant(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, bytes) = (words.next()?, words.number()?);
        let above = words.maybe().unwrap_or("process");
        let budget = self.budgets.get(above).ok_or("no such budget")?;
        let tenant = budget.tenant(name, bytes)?;
        self.budgets.insert(name.to_owned(), tenant);
        Ok(())
    }

    pub(crate) fn process(&mut self, words: &mut Words<'_>) -> Outcome {
        let limits = Limits::new(words.number()?)?;
        self.budgets
            .insert("process".to_owned(), limits.process().clone());
        Ok(())
    }

    /// `limit BYTES [EXCESS]` sets the allocator's limit, `pinned-limit` sets that of pinned memory, `host-limit` sets
    /// the host side's, and `budget NAME BYTES [EXCESS]` sets a budget's. EXCESS is the expected number of bytes held
    /// above the limit; the actual number is named `excess`.
    pub(crate) fn limit(&mut self, words: &mut Words<'_>) -> Outcome {
        let bytes = self.number_of(words.next()?)?;
        let answer = self.device()?.set_limit(bytes);
        self.answered(answer, words)
    }

    pub(crate) fn pinned_limit(&mut self, words: &mut Words<'_>) -> Outcome {
        let pinned = self
            .memory()?
            .pinned
            .as_ref()
            .ok_or(Missing("pinned memory"))?;
        let answer = pinned.set_limit(words.number()?);
        self.answered(answer, words)
    }

    pub(crate) fn host_limit(&mut self, words: &mut Words<'_>) -> Outcome {
        let bytes = self.number_of(words.next()?)?;
        let vmem = self.memory()?.vmem.as_ref().ok_or(Missing("a host side"))?;
        let answer = vmem.set_host_limit(bytes);
        self.answered(answer, words)
    }

    pub(crate) fn budget(&mut self, words: &mut Words<'_>) -> Outcome {
        let budget = self.budgets.get(words.next()?).ok_or("no such budget")?;
        let answer = budget.set(words.number()?);
        self.answered(answer, words)
    }

    /// `soft BUDGET BYTES SOFT`: sets a limit, and below it a soft limit whose crossing is reported.
    pub(crate) fn soft(&mut self, words: &mut Words<'_>) -> Outcome {
        let budget = self.budgets.get(words.next()?).ok_or("no such budget")?;
        let answer = budget.set_with_soft(words.number()?, words.number()?);
        self.answered(answer, words)
    }

    /// Compares the excess in the answer with the expected one, if an act has it.
    fn answered(&mut self, answer: LimitAnswer, words: &mut Words<'_>) -> Outcome {
        let excess = match answer {
            LimitAnswer::Applied => 0,
            LimitAnswer::Deferred { bytes } => bytes,
            refused => return Err(format!("{refused:?}").into()),
        };
        self.numbers.insert("excess".to_owned(), excess);
        match words.maybe() {
            None => Ok(()),
            Some(word) if self.number_of(word)? == excess => Ok(()),
            Some(_) => Err(format!("{excess} bytes above it").into()),
        }
    }

    /// `stable`: checks, for each kind of memory, that the bytes reported as stable are those that remain under a limit
    /// of 0. Then raises all limits. Waits for all work first, because work that ends during the check would free more.
    pub(crate) fn stable(&mut self) -> Outcome {
        let captures = self.capture.is_some() || self.foreign.is_some();
        if self.is_drawn && (self.refused || self.is_asleep() || captures) {
            return Err(Missing("memory that nothing else holds").into());
        }
        self.world.context.synchronize()?;
        let memory = self.memory()?.clone();
        let check = |stats: PoolStats, answer: LimitAnswer, now: PoolStats| {
            let stable = stats.stable_bytes;
            match answer == LimitAnswer::with_excess(stable) && now.pool_bytes == stable {
                true => Ok(()),
                false => Err(format!("{stats:?} before, {answer:?}, {now:?} after")),
            }
        };
        if let Some(device) = &memory.device {
            check(
                device.pool_stats(),
                device.set_limit(0),
                device.pool_stats(),
            )?;
        }
        if let Some(pinned) = &memory.pinned {
            check(
                pinned.pool_stats(),
                pinned.set_limit(0),
                pinned.pool_stats(),
            )?;
        }
        if let Some(vmem) = memory
            .vmem
            .as_ref()
            .filter(|vmem| vmem.host_limit_bytes() > 0)
        {
            let before = vmem.host_pool_stats();
            check(before, vmem.set_host_limit(0), vmem.host_pool_stats())?;
        }
        self.check_held()?;
        self.raise_limits()
    }

    /// Frees everything under a low limit, and checks that the limit is then met without another call.
    pub(crate) fn drain(&mut self) -> Outcome {
        if self.is_asleep() {
            self.raise_limits()?;
            self.wake_up()?;
        }
        self.end_captures()?;
        let limit = 2 * MIB;
        self.wait_for_all()?;
        let _ = self.device()?.set_limit(limit);
        self.let_go()?;
        match self.world.control.map_or(0, |control| control.used(0)) {
            used if used > limit => Err(format!("{used} bytes are held above {limit}").into()),
            _ => Ok(()),
        }
    }

    pub(crate) fn raise_limits(&mut self) -> Outcome {
        for memory in self.memories.values() {
            memory
                .budgets
                .values()
                .for_each(|budget| _ = budget.set(1 << 40));
            memory
                .device
                .iter()
                .for_each(|device| _ = device.set_limit(u64::MAX));
            memory
                .pinned
                .iter()
                .for_each(|pinned| _ = pinned.set_limit(u64::MAX));
            memory
                .vmem
                .iter()
                .for_each(|vmem| _ = vmem.set_host_limit(u64::MAX));
        }
        Ok(())
    }

    /// Checks that the allocators count all memory that exists on the device, and no more.
    pub(crate) fn check_held(&self) -> Outcome {
        let (Some(control), 1) = (self.world.control, self.world.players) else {
            return Ok(());
        };
        let devices = self
            .memories
            .values()
            .filter_map(|memory| memory.device.as_ref());
        let held: u64 = devices.map(|device| device.pool_stats().pool_bytes).sum();
        let used = control.used(0);
        match used == held {
            true => Ok(()),
            false => Err(format!("{used} bytes exist, {held} are counted").into()),
        }
    }

    /// `watch NAME [BUDGET]`: notes the events of a budget, or of the allocator's own limit if none is named.
    /// `host` stands for the limit of the host side.
    pub(crate) fn watch(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let seen = self.seen.clone();
        let note = move |event: &LimitEvent| seen.lock().unwrap().push(event.kind);
        let watch = match words.maybe() {
            Some("host") => {
                let vmem = self.memory()?.vmem.clone();
                let watch = vmem.and_then(|vmem| vmem.watch_host_limit(note));
                watch.ok_or(Missing("a host side"))?
            }
            Some(budget) => self
                .budgets
                .get(budget)
                .ok_or("no such budget")?
                .watch(note),
            None => self.device()?.watch_limit(note),
        };
        self.put(name, Thing::Watch { _held: watch })
    }

    /// `release BYTES`
    pub(crate) fn release(&mut self, words: &mut Words<'_>) -> Outcome {
        let bytes = words.number()?;
        let device = self.device()?;
        let (released, _) = self.with_refusals(|_| device.release(bytes));
        self.numbers.insert("now".to_owned(), released.now_bytes);
        self.numbers
            .insert("later".to_owned(), released.later_bytes);
        Ok(())
    }

    pub(crate) fn play_other(&mut self, verb: &str, words: &mut Words<'_>) -> Outcome {
        match verb {
            "process" => self.process(words),
            "tenant" => self.tenant(words),
            "memory" => self.make_memory(words),
            "use" => {
                words.next()?.clone_into(&mut self.current);
                Ok(())
            }
            "forget" => self.end_memory(words),
            "release" => self.release(words),
            "release-pinned" => {
                let pinned = self.memory()?.pinned.clone();
                let _ = pinned.ok_or(Missing("pinned memory"))?.release();
                Ok(())
            }
            "release-host" => {
                let vmem = self.memory()?.vmem.clone().ok_or(Missing("a host side"))?;
                self.numbers.insert("now".to_owned(), vmem.release_host());
                Ok(())
            }
            "end-step" => {
                self.device()?.end_step();
                Ok(())
            }
            "clear-stats" => {
                self.memory()?.front.clear_stats();
                Ok(())
            }
            "limit" => self.limit(words),
            "pinned-limit" => self.pinned_limit(words),
            "host-limit" => self.host_limit(words),
            "budget" => self.budget(words),
            "soft" => self.soft(words),
            "stable" => self.stable(),
            "watch" => self.watch(words),
            "sleep" => self.fall_asleep(),
            "wake" => self.wake_up(),
            "remakable" => self.remakable(words),
            "settle" => {
                self.world.context.settle();
                Ok(())
            }
            verb => self.play_with_things(verb, words),
        }
    }
}
