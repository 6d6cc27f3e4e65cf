//! AntMan's allocator over device and host memory, with our pool on both sides or TensorFlow's on both.

use std::cell::RefCell;

use larder_core::{
    AddrRange, BestFit, Block, BlockAllocator, FreeError, Grant, Placement, RegionPool, Rejected,
    Request, Shared, Stats,
};
use larder_model::antman::{Vmem, VmemError};
use larder_model::tensorflow::Bfc;
use larder_model::{Played, Source};

use super::subject::Refusal;
use crate::common::{MIB, UNIT, Upstream, UpstreamSide, apart, point, ranged, table};

/// One side, whose invariants are checked after every call.
#[derive(Clone, Copy)]
enum Side {
    Ours(&'static Shared<RegionPool<'static>, Source>),
    Upstream(&'static UpstreamSide),
}

impl Side {
    fn new(is_upstream: bool, unit: u64, limit: u64, source: Source) -> Self {
        if is_upstream {
            let side = Upstream::over(Bfc::new(limit), source);
            return Self::Upstream(Box::leak(Box::new(UpstreamSide(RefCell::new(side)))));
        }
        let pool = RegionPool::new(ranged(unit, limit), table(1 << 11)).expect("good");
        Self::Ours(Box::leak(Box::new(Shared::new(pool, source))))
    }

    fn allocator(self) -> &'static dyn BlockAllocator {
        match self {
            Self::Ours(shared) => shared,
            Self::Upstream(side) => side,
        }
    }

    /// Returns everything observable. Checks our invariants first; upstream's are checked in every call.
    fn picture(self) -> String {
        match self {
            Self::Ours(shared) => shared.with(|pool| {
                assert_eq!(pool.check_invariants(), Ok(()));
                format!("{:?}\n{}", pool.stats(), pool.dump())
            }),
            Self::Upstream(side) => side.0.borrow().picture(),
        }
    }
}

pub(super) struct Sides {
    vmem: Vmem<&'static dyn BlockAllocator>,
    device: Side,
    host: Option<Side>,
}

impl Sides {
    /// Creates both sides. Ours grow by 1 MiB; with `is_at_once`, the device's takes its whole limit at once.
    pub(super) fn new(
        is_upstream: bool,
        is_at_once: bool,
        device: u64,
        host: Option<u64>,
        planned: Option<u64>,
    ) -> Self {
        let unit = if is_at_once { device } else { MIB };
        let device = Side::new(is_upstream, unit, device, apart());
        let host = host.map(|limit| {
            let source = Source::new(0x1_0000_0000, 1 << 40);
            source.leave_gaps(UNIT);
            Side::new(is_upstream, MIB, limit, source)
        });
        let vmem = match host {
            Some(host) => Vmem::new(device.allocator(), host.allocator()),
            None => Vmem::device_only(device.allocator()),
        };
        let vmem = match planned {
            Some(bytes) => vmem.planned(bytes),
            None => vmem,
        };
        Self { vmem, device, host }
    }

    fn pictures(&self) -> [String; 2] {
        let host = self.host.map(Side::picture).unwrap_or_default();
        [self.device.picture(), host]
    }

    pub(super) fn picture(&self) -> String {
        format!("{}\n{:?}", self.pictures().concat(), self.vmem.vmem_stats())
    }

    /// Returns `done`, the outcome of a call for one side, if the other side has not changed since `before`.
    fn on<T>(&self, side: Option<Placement>, before: &[String; 2], done: T) -> Played<T> {
        let after = self.pictures();
        let other = match side {
            Some(Placement::Device) => 1,
            Some(Placement::Host) => 0,
            None => return Ok(done),
        };
        match before[other] == after[other] {
            true => Ok(done),
            false => Err(format!("the other side has changed: {}", after[other])),
        }
    }

    pub(super) fn alloc(
        &self,
        request: &Request,
        unplanned: bool,
    ) -> Played<Result<Grant, Refusal>> {
        let before = self.pictures();
        let placed = match unplanned {
            true => self.vmem.alloc_unplanned(request),
            false => self.vmem.alloc_placed(request),
        };
        let (side, granted) = match placed {
            Ok(placed) => (Some(placed.placement), Ok(placed.grant)),
            Err(error) => (None, Err(refusal(&error))),
        };
        self.on(side, &before, granted)
    }

    pub(super) fn free(
        &self,
        block: Block,
        at: Option<(u8, u64)>,
    ) -> Played<Result<(), Rejected<FreeError>>> {
        let before = self.pictures();
        let side = self.vmem.placement(&block);
        let at = at.map(|(stream, event)| point(stream, event));
        let freed = self.vmem.free_at(block, at);
        self.on(side, &before, freed)
    }

    /// Sets the device's limit, which must change no counter. Returns the limit in force.
    pub(super) fn adjust(&self, limit: u64) -> Played<u64> {
        let before = self.pictures();
        let counters = self.tuple("device");
        let in_force = match self.device {
            Side::Upstream(side) => side.0.borrow_mut().adjust(limit),
            Side::Ours(_) => return Err("only upstream's clamps the limit".into()),
        };
        if self.tuple("device") != counters {
            return Err(format!("counted: {counters:?}"));
        }
        self.on(Some(Placement::Device), &before, in_force)
    }

    pub(super) fn clear(&self) {
        self.vmem.clear_stats();
    }

    pub(super) fn side_of(&self, block: &Block) -> Option<&'static str> {
        self.vmem.placement(block).map(|side| match side {
            Placement::Device => "device",
            Placement::Host => "host",
        })
    }

    pub(super) fn sizes(&self, block: &Block) -> Option<(u64, u64)> {
        let requested = self.vmem.requested_bytes(block)?;
        Some((requested, self.vmem.allocation_id(block)?))
    }

    /// Runs `f` on the device's sub-allocator.
    pub(super) fn source<R>(&self, f: impl FnOnce(&Source) -> R) -> R {
        match self.device {
            Side::Ours(shared) => f(shared.source()),
            Side::Upstream(side) => f(&side.0.borrow().source),
        }
    }

    pub(super) fn regions(&self) -> Vec<AddrRange> {
        let mut regions = Vec::new();
        match self.device {
            Side::Ours(shared) => shared.with(|pool| {
                pool.for_each_region(|region| regions.push(region.range));
            }),
            Side::Upstream(side) => regions.extend(side.0.borrow().bfc.regions()),
        }
        regions
    }

    /// Returns the allocations, live bytes, peak and largest block of one side, of both sides as AntMan reports them
    /// (`antman`), or of both sides as they are (`joint`).
    pub(super) fn tuple(&self, of: &str) -> Option<[u64; 4]> {
        let stats = self.vmem.vmem_stats();
        let stats = match of {
            "device" => stats.device,
            "host" => stats.host,
            "antman" => stats.antman(),
            "joint" => self.vmem.stats(),
            _ => return None,
        };
        Some([
            stats.allocations,
            stats.live_bytes,
            stats.peak_live_bytes,
            stats.largest_bytes,
        ])
    }

    pub(super) fn stats(&self) -> Stats {
        match self.device {
            Side::Ours(shared) => shared.stats(),
            Side::Upstream(side) => side.stats(),
        }
    }

    pub(super) fn joint(&self) -> (u64, u64) {
        let stats = self.vmem.vmem_stats();
        (stats.joint_live_bytes, stats.joint_peak_bytes)
    }
}

/// Returns a refusal with the device's numbers, and with the plan's if the plan refuses. If both sides refuse and the
/// host is at its limit, that limit is added.
fn refusal(error: &VmemError) -> Refusal {
    let mut refusal = Refusal::of(error);
    let device = Refusal::of_alloc(error.device());
    refusal.numbers = device.numbers;
    match error {
        VmemError::Planned {
            peak_bytes,
            planned_bytes,
            ..
        } => {
            let words = error.to_string();
            let both = [peak_bytes, planned_bytes].map(|bytes| bytes.to_string());
            assert!(both.iter().all(|bytes| words.contains(bytes)), "{words}");
            refusal.numbers.push(("peak", *peak_bytes));
            refusal.numbers.push(("planned", *planned_bytes));
        }
        VmemError::Both { host, .. } => {
            let host = Refusal::of_alloc(*host);
            let limit = host.numbers.iter().find(|(name, _)| *name == "limit");
            let limit = limit.map(|(_, limit)| ("host-limit", *limit));
            refusal
                .numbers
                .extend(limit.filter(|_| host.name == "Limit"));
        }
        _ => {}
    }
    refusal
}
