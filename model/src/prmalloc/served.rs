//! A plan in use: bins over slabs, with stacks of free blocks.

use std::collections::BTreeMap;

use larder_core::prmalloc::{AllocStat, Interval, SMALL_MAX_BYTES, SmallClass};
use larder_core::{Addr, AddrRange, Align, GrowRequest, SubAllocator, round_up};

use super::{Form, Plan, Plans};

/// The key of a bin: whether its sizes are above 32 KiB, and its class among those sizes.
type Key = (bool, u64);

struct Bin {
    align: Align,
    stride_bytes: u64,
    blocks: u64,
    base: u64,
    /// The numbers of the free blocks; the last one is used next.
    free: Vec<u64>,
    /// The bins whose blocks it may use, oldest first.
    virtuals: Vec<Key>,
    /// The last step in which virtual blocks took turns, and the number of turns in it.
    turn_step: u64,
    turns: usize,
}

struct Used {
    bin: Key,
    number: u64,
    stat: AllocStat,
    /// The bin that borrowed the block and gets its virtual block back.
    borrower: Option<Key>,
}

pub(super) struct Served {
    interval: Interval,
    bins: BTreeMap<Key, Bin>,
    slabs: Vec<AddrRange>,
    used: BTreeMap<u64, Used>,
}

impl Served {
    /// Takes slabs from the backend for the cheapest plan and for the plan of small sizes. If the backend has too
    /// little memory, returns the bytes needed.
    pub(super) fn new(plans: &Plans, form: Form, backend: &impl SubAllocator) -> Result<Self, u64> {
        let interval = plans.best().interval;
        let mut served = Self {
            interval,
            bins: BTreeMap::new(),
            slabs: Vec::new(),
            used: BTreeMap::new(),
        };
        let mut needed: u64 = 0;
        for (is_large, plan) in [
            (false, plans.small.as_ref()),
            (true, Some(plans.of(interval))),
        ] {
            if let Some(plan) = plan {
                served.add_bins(is_large, plan);
                needed = needed.saturating_add(plan.slab_bytes());
            }
        }
        let keys = served.bins.keys().copied();
        let groups: Vec<Vec<Key>> = if form.one_slab {
            let (large, small) = keys.partition(|key| key.0);
            vec![small, large]
        } else {
            keys.map(|key| vec![key]).collect()
        };
        for group in groups {
            if served.lay_out(&group, form.unit, backend).is_none() {
                served.give_back(backend);
                return Err(needed);
            }
        }
        Ok(served)
    }

    fn add_bins(&mut self, is_large: bool, plan: &Plan) {
        for (class, bin) in &plan.bins {
            if bin.blocks.is_empty() && bin.virtuals.is_empty() {
                continue;
            }
            let blocks = bin.blocks.len() as u64;
            let target = |block: &usize| (is_large, plan.blocks[*block].class);
            let bin = Bin {
                align: bin.align,
                stride_bytes: plan.stride_bytes(*class),
                blocks,
                base: 0,
                free: (0..blocks).rev().collect(),
                virtuals: bin.virtuals.iter().map(target).collect(),
                turn_step: 0,
                turns: 0,
            };
            self.bins.insert((is_large, *class), bin);
        }
    }

    /// Takes one slab for these bins and lays them out one after the other. Returns `None` if there is no memory for
    /// it.
    fn lay_out(&mut self, keys: &[Key], unit: Align, backend: &impl SubAllocator) -> Option<()> {
        let (mut bytes, mut align) = (0, unit);
        for key in keys {
            let bin = self.bins.get_mut(key)?;
            if bin.blocks == 0 {
                continue;
            }
            bin.base = round_up(bytes, bin.align)?;
            bytes = bin
                .base
                .checked_add(bin.blocks.checked_mul(bin.stride_bytes)?)?;
            align = align.max(bin.align);
        }
        if bytes == 0 {
            return Some(());
        }
        let request = GrowRequest {
            bytes: round_up(bytes, align)?,
            align,
            at: None,
        };
        let slab = backend.grow(request).ok()?;
        self.slabs.push(slab);
        for key in keys {
            self.bins.get_mut(key)?.base += slab.start().get();
        }
        Some(())
    }

    /// Allocates a block for a lifetime whose end is not known yet. If there is no block, returns whether there is a
    /// bin for its size.
    pub(super) fn take(&mut self, stat: AllocStat, step: u64, turns: bool) -> Result<Addr, bool> {
        let key = self
            .key_of(stat.bytes)
            .filter(|key| self.bins.contains_key(key));
        let key = key.ok_or(false)?;
        let own = self.pop(key, stat.align).map(|number| (key, number, None));
        let found = match own {
            Some(own) => Some(own),
            None if turns => self.borrow_in_turn(key, stat.align, step),
            None => self.borrow_newest(key, stat.align),
        };
        let (bin, number, borrower) = found.ok_or(true)?;
        let addr = self.bins[&bin].base + number * self.bins[&bin].stride_bytes;
        let used = Used {
            bin,
            number,
            stat,
            borrower,
        };
        self.used.insert(addr, used);
        Ok(Addr::new(addr))
    }

    fn pop(&mut self, key: Key, align: Align) -> Option<u64> {
        let bin = self.bins.get_mut(&key)?;
        (align <= bin.align).then(|| bin.free.pop())?
    }

    /// Allocates from a larger bin, through the newest virtual block.
    fn borrow_newest(&mut self, key: Key, align: Align) -> Option<(Key, u64, Option<Key>)> {
        let target = *self.bins[&key].virtuals.last()?;
        let number = self.pop(target, align)?;
        self.bins.get_mut(&key)?.virtuals.pop();
        Some((target, number, Some(key)))
    }

    /// Allocates from the larger bin whose turn it is, if that bin has a block.
    fn borrow_in_turn(
        &mut self,
        key: Key,
        align: Align,
        step: u64,
    ) -> Option<(Key, u64, Option<Key>)> {
        let bin = self.bins.get_mut(&key)?;
        if bin.turn_step != step {
            (bin.turn_step, bin.turns) = (step, 0);
        }
        let turn = bin.turns.checked_rem(bin.virtuals.len())?;
        bin.turns = turn + 1;
        let target = bin.virtuals[turn];
        let number = self.pop(target, align)?;
        Some((target, number, None))
    }

    fn key_of(&self, bytes: u64) -> Option<Key> {
        if bytes <= SMALL_MAX_BYTES {
            return Some((false, u64::from(SmallClass::of(bytes)?.number())));
        }
        Some((true, self.interval.class_of(bytes)?))
    }

    /// Frees the block in use at an address. Returns its lifetime so far, or `None` if there is no such block.
    pub(super) fn free(&mut self, addr: Addr) -> Option<AllocStat> {
        let used = self.used.remove(&addr.get())?;
        self.bins.get_mut(&used.bin)?.free.push(used.number);
        if let Some(borrower) = used.borrower {
            self.bins.get_mut(&borrower)?.virtuals.push(used.bin);
        }
        Some(used.stat)
    }

    pub(super) fn is_unused(&self) -> bool {
        self.used.is_empty()
    }

    pub(super) fn slab_bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.bytes()).sum()
    }

    pub(super) fn give_back(&self, backend: &impl SubAllocator) {
        for slab in &self.slabs {
            // A slab that the backend refuses to release is lost.
            backend.release(*slab).ok();
        }
    }
}
