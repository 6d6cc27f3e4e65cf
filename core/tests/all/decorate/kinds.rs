//! The allocators in the decorators' scripts, with their checks and counters.

use larder_core::decorate::{CheckError, FindingCounts, Guarded, Poisoned, Quarantined, Tracked};
use larder_core::{
    AllocError, Block, BlockAllocator, FreeError, Grant, Rejected, Request, SliceAccess, Stats,
    StreamPoint,
};

use super::ground::{Best, Watched};

pub(crate) type Dyn = &'static dyn BlockAllocator;
pub(crate) type Access = &'static Watched<SliceAccess<'static>>;

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Best(&'static Best),
    Guarded(&'static Guarded<Dyn, Access>),
    Quarantined(&'static Quarantined<Dyn, Access>),
    Poisoned(&'static Poisoned<Dyn, Access>),
    Tracked(&'static Tracked<Dyn>),
    /// An allocator without checks and counters.
    Plain(Dyn),
}

/// An allocator that refuses every request.
pub(crate) struct Fails;

impl BlockAllocator for Fails {
    fn alloc(&self, _: &Request) -> Result<Grant, AllocError> {
        Err(AllocError::PlaceTaken)
    }

    fn free_at(&self, block: Block, _: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        panic!("{block:?} was never given")
    }

    fn requested_bytes(&self, _: &Block) -> Option<u64> {
        None
    }

    fn allocation_id(&self, _: &Block) -> Option<u64> {
        None
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

pub(crate) fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Kind {
    pub(crate) fn allocator(self) -> Dyn {
        match self {
            Self::Best(best) => best,
            Self::Guarded(guarded) => guarded,
            Self::Quarantined(quarantined) => quarantined,
            Self::Poisoned(poisoned) => poisoned,
            Self::Tracked(tracked) => tracked,
            Self::Plain(plain) => plain,
        }
    }

    pub(crate) fn check_all(self, found: &mut dyn FnMut(CheckError)) -> u64 {
        match self {
            Self::Guarded(guarded) => guarded.check_all(found),
            Self::Quarantined(quarantined) => quarantined.check_all(found),
            _ => panic!("it checks nothing"),
        }
    }

    pub(crate) fn take_finding(self) -> Option<CheckError> {
        match self {
            Self::Guarded(guarded) => guarded.take_finding(),
            Self::Quarantined(quarantined) => quarantined.take_finding(),
            _ => panic!("it finds nothing"),
        }
    }

    pub(crate) fn counters(self) -> Vec<(&'static str, u64)> {
        let findings = |counts: FindingCounts| {
            vec![
                ("damaged", counts.damaged),
                ("unreachable", counts.unreachable),
                ("unlisted", counts.unlisted),
                ("kept blocks", counts.kept_blocks),
                ("kept", counts.kept_bytes),
            ]
        };
        match self {
            Self::Best(best) => vec![("live", best.stats().live_bytes)],
            Self::Guarded(guarded) => findings(guarded.finding_counts()),
            Self::Quarantined(quarantined) => {
                let stats = quarantined.quarantine_stats();
                let mut counters = vec![
                    ("waiting blocks", stats.waiting_blocks),
                    ("waiting", stats.waiting_bytes),
                    ("passed", stats.passed_blocks),
                    ("drains", stats.drains),
                ];
                counters.extend(findings(quarantined.finding_counts()));
                counters
            }
            Self::Poisoned(poisoned) => vec![("failures", poisoned.failures())],
            Self::Tracked(tracked) => {
                let stats = tracked.track_stats();
                vec![
                    ("total", stats.total_bytes),
                    ("most", stats.high_water_bytes),
                    ("live", stats.live_bytes),
                    ("blocks", stats.live_blocks),
                    ("failures", stats.failures),
                    ("dropped", stats.dropped_records),
                    ("done", tracked.is_done().into()),
                ]
            }
            Self::Plain(_) => vec![],
        }
    }
}
