//! All contenders of the pair benches, and how to build each.
//!
//! Shared by the bench targets `pair` and `pair_rounds`. Those that need a crate of
//! another allocator live here and not in the library, so that the crates stay
//! development dependencies.

#[expect(unsafe_code, reason = "a C interface: see the file's header")]
mod fake_vulkan;
mod gpu;
mod offset;

use larder_bench::pair::{
    Bump, Churn, Failure, Larder, LarderPaged, OrderedSetBfc, PairContender, PairFault, PairScript,
    Runner,
};
use larder_core::Chunk;

use gpu::GpuAllocator;
use offset::OffsetAllocator;

/// One of the contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The loop without any allocator.
    Loop,
    /// The crate `offset-allocator`: what all others are compared with.
    Offset,
    /// `larder-core`.
    Larder,
    /// `larder-core`'s BFC over pages that may move.
    LarderPaged,
    /// The ordered-set BFC, always splitting.
    AlwaysSplit,
    /// The ordered-set BFC with XLA's split rule.
    XlaOneRegion,
    /// The crate `gpu-allocator`.
    Gpu,
}

impl Kind {
    /// All of them, in the order of tables.
    pub(crate) const ALL: [Self; 7] = [
        Self::Loop,
        Self::Offset,
        Self::Larder,
        Self::LarderPaged,
        Self::AlwaysSplit,
        Self::XlaOneRegion,
        Self::Gpu,
    ];

    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loop => Bump::NAME,
            Self::Offset => OffsetAllocator::NAME,
            Self::Larder => Larder::NAME,
            Self::LarderPaged => LarderPaged::NAME,
            Self::AlwaysSplit => OrderedSetBfc::ALWAYS_SPLIT,
            Self::XlaOneRegion => OrderedSetBfc::XLA_ONE_REGION,
            Self::Gpu => GpuAllocator::NAME,
        }
    }

    /// Whether it is measured at so many live blocks.
    pub(crate) fn runs_at(self, live: usize) -> bool {
        self != Self::Gpu || live <= GpuAllocator::MAX_LIVE
    }

    /// Builds it and fills it with the script's live blocks. `table` is lent to those that keep
    /// their records in one.
    pub(crate) fn build<'a>(
        self,
        script: &'a PairScript,
        table: &'a mut Vec<Chunk>,
    ) -> Result<Box<dyn Runner + 'a>, Failure> {
        let failed = |text| Failure {
            contender: self.name(),
            live: script.live(),
            fault: PairFault::Setup(text),
        };
        match self {
            Self::Loop => filled(Bump::default(), script),
            Self::Offset => filled(OffsetAllocator::try_new(script).map_err(failed)?, script),
            Self::Larder => filled(Larder::try_new(script, table).map_err(failed)?, script),
            Self::LarderPaged => {
                filled(LarderPaged::try_new(script, table).map_err(failed)?, script)
            }
            Self::AlwaysSplit => filled(OrderedSetBfc::always_split(script), script),
            Self::XlaOneRegion => filled(OrderedSetBfc::xla_one_region(script), script),
            Self::Gpu => filled(GpuAllocator::try_new(script).map_err(failed)?, script),
        }
    }
}

fn filled<'a, C: PairContender + 'a>(
    contender: C,
    script: &'a PairScript,
) -> Result<Box<dyn Runner + 'a>, Failure> {
    Ok(Box::new(Churn::try_new(contender, script)?))
}
