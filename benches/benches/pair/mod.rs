//! All contenders of the pair benches, and how to build each.
//!
//! Shared by the bench targets `pair` and `pair_rounds`. Those that need a crate of
//! another allocator live here and not in the library, so that the crates stay
//! development dependencies.

#[expect(unsafe_code, reason = "a C interface: see the file's header")]
mod fake_vulkan;
mod gpu;
mod offset;

use larder_cli::pair::{
    Bump, Churn, Failure, Larder, LarderPaged, OrderedSetBfc, PairContender, PairFault, PairScript,
    Runner,
};
use larder_core::Chunk;

use gpu::GpuAllocator;
use offset::OffsetAllocator;

/// One of the contenders.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// The name in tables.
    pub(crate) name: &'static str,
    /// It is not measured above so many live blocks.
    pub(crate) max_live: usize,
    build: Build,
}

type Build = for<'a> fn(&'static str, &'a PairScript, &'a mut Vec<Chunk>) -> Built<'a>;
type Built<'a> = Result<Box<dyn Runner + 'a>, Failure>;

/// What all others are compared with.
pub(crate) const BASELINE: &str = "offset-allocator";

const fn kind(name: &'static str, build: Build) -> Kind {
    Kind {
        name,
        max_live: usize::MAX,
        build,
    }
}

/// All of them, in the order of tables: the loop by itself, the crate `offset-allocator`, `larder-core` plain and
/// over pages that may move, the ordered-set BFC, the crate `gpu-allocator`.
pub(crate) const KINDS: [Kind; 7] = [
    kind("the loop alone", |name, script, _| {
        filled(name, Ok(Bump::default()), script)
    }),
    kind(BASELINE, |name, script, _| {
        filled(name, OffsetAllocator::try_new(script), script)
    }),
    kind("larder", |name, script, table| {
        filled(name, Larder::try_new(script, table), script)
    }),
    kind("larder-paged", |name, script, table| {
        filled(name, LarderPaged::try_new(script, table), script)
    }),
    kind("always-split", |name, script, _| {
        filled(name, Ok(OrderedSetBfc::always_split(script)), script)
    }),
    kind("xla-one-region", |name, script, _| {
        filled(name, Ok(OrderedSetBfc::xla_one_region(script)), script)
    }),
    Kind {
        max_live: GpuAllocator::MAX_LIVE,
        ..kind("gpu-allocator", |name, script, _| {
            filled(name, GpuAllocator::try_new(script), script)
        })
    },
];

impl Kind {
    /// Builds it and fills it with the script's live blocks. The table is lent to those that keep their
    /// records in one.
    pub(crate) fn build<'a>(self, script: &'a PairScript, table: &'a mut Vec<Chunk>) -> Built<'a> {
        (self.build)(self.name, script, table)
    }
}

fn filled<'a, C: PairContender + 'a>(
    name: &'static str,
    contender: Result<C, String>,
    script: &'a PairScript,
) -> Built<'a> {
    let contender = contender.map_err(|text| Failure {
        contender: name,
        live: script.live(),
        fault: PairFault::Setup(text),
    });
    Ok(Box::new(Churn::try_new(name, contender?, script)?))
}
