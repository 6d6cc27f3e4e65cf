//! The allocators that scripts are played on: the real pool with its model, and TensorFlow's.

use larder_core::{
    AddrRange, AllocError, BestFit, Block, ChunkState, Grant, Growth, PoolStats, RegionConfig,
    Request, Stats,
};
use larder_model::{Call, Pair, Played, Source};

use super::number::number;
use super::sides::Sides;
use crate::common::{BASE, GIVEN_BASE, UNIT, Upstream, apart, contiguous, range, table};

/// A refusal: the name of the error or, if memory is out, of the cause; and the error's numbers.
pub(super) struct Refusal {
    pub(super) name: String,
    pub(super) numbers: Vec<(&'static str, u64)>,
}

impl Refusal {
    pub(super) fn of(error: &impl std::fmt::Debug) -> Self {
        let text = format!("{error:?}");
        let end = text.find([' ', '(']).unwrap_or(text.len());
        Self {
            name: text[..end].to_owned(),
            numbers: Vec::new(),
        }
    }

    pub(super) fn of_alloc(error: AllocError) -> Self {
        let AllocError::OutOfMemory(out) = error else {
            return Self::of(&error);
        };
        let numbers = vec![
            ("requested", out.requested_bytes),
            ("rounded", out.rounded_bytes),
            ("limit", out.limit_bytes),
            ("reserved", out.reserved_bytes),
            ("live", out.live_bytes),
            ("free", out.free_bytes),
            ("largest-free", out.largest_free_bytes),
            ("pending", out.pending_bytes),
        ];
        Self {
            numbers,
            ..Self::of(&out.cause)
        }
    }
}

/// A free chunk: its start, its bytes, and whether a stream still uses it.
pub(super) type Hole = (u64, u64, bool);

pub(super) enum Subject {
    Ours(Box<Pair<'static>>),
    Upstream(Box<Upstream>),
    Sides(Sides),
}

/// The options of a pool: single words and `KEY=VALUE`.
struct Options<'t>(Vec<&'t str>);

impl Options<'_> {
    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    fn text(&self, key: &str) -> Option<&str> {
        let mut values = self.0.iter().filter_map(|word| word.split_once('='));
        values.find(|(name, _)| *name == key).map(|pair| pair.1)
    }

    fn number(&self, key: &str, otherwise: u64) -> Result<u64, String> {
        self.text(key).map_or(Ok(otherwise), number)
    }

    /// Reads `regions=AT:SIZE,..`.
    fn regions(&self) -> Result<Vec<AddrRange>, String> {
        let places = self.text("regions").into_iter();
        places
            .flat_map(|places| places.split(','))
            .map(|place| {
                let (at, bytes) = place.split_once(':').ok_or("AT:SIZE")?;
                Ok(range(number(at)?, number(bytes)?))
            })
            .collect()
    }
}

impl Subject {
    /// Creates the allocators of a `pool` row, each with the base of its relative addresses.
    pub(super) fn all(row: &str) -> Result<Vec<(Self, u64)>, String> {
        let mut words = row.split_whitespace().skip(1);
        let kind = words.next().unwrap_or_default();
        let options = Options(words.collect());
        Ok(match kind {
            "fixed" => vec![Self::fixed(&options)?],
            "ranged" => vec![Self::ranged(&options)?],
            "tensorflow" => vec![Self::tensorflow(&options)?],
            "both" => Self::both(&options)?,
            "sides" | "upstream-sides" => vec![(Self::sides(kind, &options)?, GIVEN_BASE)],
            _ => return Err(format!("no pool {kind:?}")),
        })
    }

    fn ours(config: RegionConfig, records: u64, source: &Source) -> Pair<'static> {
        Pair::new(config, table(records as usize), source)
    }

    fn fixed(options: &Options<'_>) -> Result<(Self, u64), String> {
        let config = RegionConfig {
            limit_bytes: options.number("limit", u64::MAX)?,
            ..RegionConfig::fixed()
        };
        let mut regions = options.regions()?;
        let first = regions.first().map(|region| region.start().get());
        let base = options.number("base", first.unwrap_or(BASE))?;
        let mut pair = Self::ours(config, options.number("records", 1 << 11)?, &contiguous());
        if let Some(size) = options.0.first()
            && size.starts_with(|first: char| first.is_ascii_digit())
        {
            regions.push(range(base, number(size)?));
        }
        for region in regions {
            let added = pair.add_region(region)?;
            added.map_err(|error| error.to_string())?;
        }
        Ok((Self::Ours(Box::new(pair)), base))
    }

    fn ranged(options: &Options<'_>) -> Result<(Self, u64), String> {
        let unit_bytes = options.number("unit", UNIT)?;
        let ahead = options.number("ahead", 0)?;
        let config = RegionConfig {
            growth: Growth::Range {
                unit_bytes,
                ahead_divisor: core::num::NonZeroU32::new(ahead as u32),
            },
            ..RegionConfig::new(options.number("limit", u64::MAX)?)
        };
        let (source, gap) = match options.has("apart") {
            true => (apart(), UNIT),
            false => (contiguous(), 0),
        };
        let pair = Self::ours(config, options.number("records", 1 << 11)?, &source);
        Ok((Self::Ours(Box::new(pair)), GIVEN_BASE + gap))
    }

    fn tensorflow(options: &Options<'_>) -> Result<(Self, u64), String> {
        let limit = options.number("limit", u64::MAX)?;
        let mut bfc = larder_model::tensorflow::Bfc::new(limit);
        if options.text("first").is_some() {
            bfc = bfc.with_first_region(options.number("first", 0)?);
        }
        if options.has("collecting") {
            bfc = bfc.collecting();
        }
        let (source, gap) = match options.has("adjacent") {
            true => (contiguous(), 0),
            false => (apart(), UNIT),
        };
        let regions = options.regions()?;
        let base = regions.first().map(|region| region.start().get());
        for region in regions {
            bfc.add_region(region);
            source.hand_out(region);
        }
        let upstream = Upstream::over(bfc, source);
        let base = base.unwrap_or(GIVEN_BASE + gap);
        Ok((Self::Upstream(Box::new(upstream)), base))
    }

    /// Creates TensorFlow's allocator and ours. Ours has the same regions if they are given. Otherwise it grows by
    /// 1 MiB, or takes the whole limit at once, over a sub-allocator that leaves gaps.
    fn both(options: &Options<'_>) -> Result<Vec<(Self, u64)>, String> {
        let limit = options.text("limit").unwrap_or("max");
        let first = if options.has("at-once") { limit } else { "1M" };
        let ours = match options.text("regions") {
            Some(regions) => format!("regions={regions}"),
            None => format!("limit={limit} unit={first} apart"),
        };
        let ours = Options(ours.split_whitespace().collect());
        let first = format!("first={first}");
        let mut theirs = options.0.clone();
        theirs.push(&first);
        let ours = match options.text("regions") {
            Some(_) => Self::fixed(&ours)?,
            None => Self::ranged(&ours)?,
        };
        Ok(vec![Self::tensorflow(&Options(theirs))?, ours])
    }

    fn sides(kind: &str, options: &Options<'_>) -> Result<Self, String> {
        let limit = |key| options.text(key).map(number).transpose();
        Ok(Self::Sides(Sides::new(
            kind == "upstream-sides",
            options.has("at-once"),
            options.number("device", u64::MAX)?,
            limit("host")?,
            limit("planned")?,
        )))
    }

    pub(super) fn both_sides(&self) -> Result<&Sides, String> {
        match self {
            Self::Sides(sides) => Ok(sides),
            _ => Err("not two sides".into()),
        }
    }

    /// Returns our pool, for operations that TensorFlow's does not have.
    pub(super) fn pair(&mut self) -> Result<&mut Pair<'static>, String> {
        match self {
            Self::Ours(pair) => Ok(pair),
            _ => Err("only our pool knows this".into()),
        }
    }

    /// Allocates. With `unplanned`, two sides ignore their plan.
    pub(super) fn alloc(
        &mut self,
        request: &Request,
        unplanned: bool,
    ) -> Played<Result<Grant, Refusal>> {
        Ok(match self {
            Self::Sides(sides) => sides.alloc(request, unplanned)?,
            Self::Ours(pair) => pair.alloc(request)?.map_err(Refusal::of_alloc),
            Self::Upstream(upstream) => {
                let count = request.freed_by.map_or(0, |event| event.number());
                let block = upstream.alloc_freed_by(request.bytes, count);
                let grant = block.map(|block| Grant { block, wait: None });
                grant.ok_or(Refusal::of(&"null"))
            }
        })
    }

    pub(super) fn free(
        &mut self,
        block: Block,
        point: Option<(u8, u64)>,
    ) -> Played<Result<(), (Block, Refusal)>> {
        let freed = match self {
            Self::Ours(pair) => pair.free(block, point)?,
            Self::Sides(sides) => sides.free(block, point)?,
            Self::Upstream(upstream) => {
                upstream.free_at(block, point.map_or(0, |(_, count)| count));
                Ok(())
            }
        };
        Ok(freed.map_err(|rejected| (rejected.value, Refusal::of(&rejected.error))))
    }

    /// Sets the limit. Returns the limit in force and the bytes left above it, which only our pool reports.
    pub(super) fn adjust(&mut self, limit: u64) -> Played<(u64, u64)> {
        Ok(match self {
            Self::Ours(pair) => (limit, pair.adjust(limit)?),
            Self::Upstream(upstream) => (upstream.adjust(limit), 0),
            Self::Sides(sides) => (sides.adjust(limit)?, 0),
        })
    }

    pub(super) fn trim(&mut self) -> Played<u64> {
        match self {
            Self::Ours(pair) => pair.trim(),
            Self::Upstream(upstream) => Ok(upstream.bfc.release_free_regions(&upstream.source)),
            Self::Sides(_) => Err("trim one side".into()),
        }
    }

    pub(super) fn clear(&mut self) -> Played<()> {
        match self {
            Self::Ours(pair) => pair.clear_stats(),
            Self::Upstream(upstream) => {
                upstream.bfc.clear_stats();
                Ok(())
            }
            Self::Sides(sides) => {
                sides.clear();
                Ok(())
            }
        }
    }

    pub(super) fn sources(&self, f: impl Fn(&Source)) {
        match self {
            Self::Ours(pair) => pair.sources(f),
            Self::Upstream(upstream) => f(&upstream.source),
            Self::Sides(sides) => sides.source(f),
        }
    }

    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        match self {
            Self::Ours(pair) => pair.take_calls(),
            Self::Upstream(upstream) => upstream.source.take_log(),
            Self::Sides(sides) => sides.source(Source::take_log),
        }
    }

    fn stats(&self) -> Stats {
        match self {
            Self::Ours(pair) => pair.stats(),
            Self::Upstream(upstream) => upstream.bfc.stats(),
            Self::Sides(sides) => sides.stats(),
        }
    }

    fn pool_stats(&mut self) -> Played<PoolStats> {
        match self {
            Self::Ours(pair) => pair.pool_stats(),
            Self::Upstream(upstream) => Ok(upstream.bfc.pool_stats()),
            Self::Sides(_) => Err("ask one side".into()),
        }
    }

    pub(super) fn regions(&mut self) -> Vec<AddrRange> {
        match self {
            Self::Ours(pair) => {
                let mut regions = Vec::new();
                pair.real()
                    .for_each_region(|region| regions.push(region.range));
                regions
            }
            Self::Upstream(upstream) => upstream.bfc.regions().collect(),
            Self::Sides(sides) => sides.regions(),
        }
    }

    pub(super) fn holes(&mut self) -> Vec<Hole> {
        let mut holes = Vec::new();
        match self {
            Self::Ours(pair) => pair.real().for_each_chunk(|chunk| {
                if let ChunkState::Free { pending } = chunk.state {
                    let range = chunk.range;
                    holes.push((range.start().get(), range.bytes(), pending));
                }
            }),
            Self::Upstream(upstream) => {
                let free = upstream.free_chunks().into_iter();
                holes.extend(free.map(|(start, bytes)| (start, bytes, false)));
            }
            Self::Sides(_) => {}
        }
        holes
    }

    /// Returns the requested size and the allocation number of a block.
    pub(super) fn sizes(&mut self, block: &Block) -> Option<(u64, u64)> {
        match self {
            Self::Ours(pair) => {
                let pool = pair.real();
                Some((pool.requested_bytes(block)?, pool.allocation_id(block)?))
            }
            Self::Upstream(upstream) => upstream.sizes(block),
            Self::Sides(sides) => sides.sizes(block),
        }
    }

    pub(super) fn number(&mut self, key: &str) -> Played<u64> {
        let stats = self.stats();
        Ok(match key {
            "allocations" => stats.allocations,
            "live" => stats.live_bytes,
            "peak" => stats.peak_live_bytes,
            "largest" => stats.largest_bytes,
            "requested" => stats.requested_bytes,
            "reserved" => stats.reserved_bytes,
            "limit" => stats.limit_bytes,
            "excess" => self.pair()?.real().excess_bytes(),
            "pool" => self.pool_stats()?.pool_bytes,
            "stable" => self.pool_stats()?.stable_bytes,
            "pending" => self.pair()?.real().report().pending_bytes,
            "out" => match self {
                Self::Ours(pair) => pair.out_bytes(),
                Self::Upstream(upstream) => upstream.source.out_bytes(),
                Self::Sides(sides) => sides.source(Source::out_bytes),
            },
            "joint-live" => self.both_sides()?.joint().0,
            "joint-peak" => self.both_sides()?.joint().1,
            "vacant" => u64::from(self.pair()?.real().report().vacant_records),
            "chunks" => match self {
                Self::Ours(pair) => {
                    let report = pair.real().report();
                    u64::from(report.used_chunks + report.free_chunks)
                }
                Self::Upstream(upstream) => upstream.bfc.chunks().count() as u64,
                Self::Sides(_) => return Err("ask one side".into()),
            },
            _ => return Err(format!("no number {key:?}")),
        })
    }

    /// Returns everything observable, to check that nothing has changed.
    pub(super) fn picture(&mut self) -> String {
        match self {
            Self::Ours(pair) => {
                let stats = pair.stats();
                let pool = pair.real();
                format!("{stats:?} {:?}\n{}", pool.report(), pool.dump())
            }
            Self::Upstream(upstream) => upstream.picture(),
            Self::Sides(sides) => sides.picture(),
        }
    }
}
