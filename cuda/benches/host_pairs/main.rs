//! Host time of a free and an alloc of device memory, beside the bare algorithm, and from several
//! threads on streams of their own.
//!
//! `cargo bench -p larder-cuda --bench host_pairs [-- --live 1000 --rounds 15 --threads 2]` prints a
//! markdown table. Each thread keeps so many blocks, frees one at random and allocates another of a
//! random size, 256 bytes to 64 KiB, as many of each power of two. All contenders take turns in each round.
//! Only where captures are looked for does a pair call the driver, once (`DeviceConfig::check_captures`): else the
//! driver hardly matters. A few seconds. A second table has how long a thread's calls take beside one that moves pages.

mod beside;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use larder_core::pages::{
    Backing, Handle, Mapping, PageCall, PageConfig, PageDriver, PageEntry, PagePool, PageTables,
};
use larder_core::{
    Addr, AddrRange, BestFit, Block, BlockAllocator, Chunk, RegionConfig, RegionPool, Request,
    Shared, StreamId, SubAllocError,
};
use larder_cuda::driver::load_from_env;
use larder_cuda::{ArenaPolicy, Context, CudaStream, DeviceAllocator, DeviceConfig};

const CHUNKS: usize = 1 << 16;
/// Addresses of each contender: more than is ever live.
const RANGE_BYTES: u64 = 3 << 30;
const PAGE_BYTES: u64 = 2 << 20;

/// A generator of 64 bits.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn size(&mut self) -> u64 {
        let base = 256 << (self.next() % 8);
        base + self.next() % base
    }
}

/// What is asked of a contender, drawn before the clock starts.
struct Script {
    first: Vec<u64>,
    /// Which block is freed, and the size of the next one.
    pairs: Vec<(usize, u64)>,
}

impl Script {
    fn new(live: usize, pairs: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            first: (0..live).map(|_| random.size()).collect(),
            pairs: (0..pairs)
                .map(|_| (random.next() as usize % live, random.size()))
                .collect(),
        }
    }
}

/// One thread's side of an allocator.
trait Side {
    fn alloc(&mut self, bytes: u64) -> Option<Block>;
    fn free(&mut self, block: Block);
}

/// Runs a script; gives the time of its pairs, or nothing if memory was short.
fn run(side: &mut impl Side, script: &Script, start: &Barrier) -> Option<(Instant, Instant)> {
    let mut blocks: Vec<Option<Block>> = Vec::new();
    let first: Option<Vec<_>> = script
        .first
        .iter()
        .map(|bytes| side.alloc(*bytes))
        .collect();
    blocks.extend(first?.into_iter().map(Some));
    start.wait();
    let begun = Instant::now();
    let mut short = false;
    for (index, bytes) in &script.pairs {
        let slot = &mut blocks[*index];
        if let Some(block) = slot.take() {
            side.free(block);
        }
        *slot = black_box(side.alloc(*bytes));
        short |= slot.is_none();
    }
    let ended = Instant::now();
    blocks
        .drain(..)
        .flatten()
        .for_each(|block| side.free(block));
    (!short).then_some((begun, ended))
}

fn addresses() -> Option<AddrRange> {
    AddrRange::new(Addr::new(1 << 32), RANGE_BYTES)
}

struct Bare(RegionPool<'static>);

impl Side for Bare {
    fn alloc(&mut self, bytes: u64) -> Option<Block> {
        Some(self.0.alloc(&Request::new(bytes)).ok()?.block)
    }

    fn free(&mut self, block: Block) {
        assert!(self.0.free(block).is_ok());
    }
}

/// Says yes to every call.
struct Yes;

impl PageDriver for Yes {
    fn call(&self, _: PageCall) -> Result<(), SubAllocError> {
        Ok(())
    }
}

/// Over pages, on a stream.
struct Locked<'p>(&'p Shared<PagePool<'static>, Yes>, StreamId);

impl Locked<'_> {
    fn pool(limit_bytes: u64) -> Option<Shared<PagePool<'static>, Yes>> {
        let pages = (RANGE_BYTES / PAGE_BYTES) as usize;
        let tables = PageTables {
            entries: vec![PageEntry::EMPTY; pages].leak(),
            handles: vec![Handle::VACANT; pages + 1].leak(),
            mappings: vec![Mapping::VACANT; CHUNKS].leak(),
        };
        let config = PageConfig::new(addresses()?, Backing::Billed);
        let chunks = vec![Chunk::VACANT; CHUNKS].leak();
        let mut paged = PagePool::new(config, chunks, tables).ok()?;
        paged.set_limit(limit_bytes);
        Some(Shared::new(paged, Yes))
    }

    fn give(pool: Shared<PagePool<'static>, Yes>) {
        let (chunks, tables) = pool.into_parts().0.into_tables();
        give(chunks);
        give(tables.entries);
        give(tables.handles);
        give(tables.mappings);
    }
}

impl Side for Locked<'_> {
    fn alloc(&mut self, bytes: u64) -> Option<Block> {
        let request = Request::new(bytes).on(self.1);
        Some(self.0.alloc(&request).ok()?.block)
    }

    fn free(&mut self, block: Block) {
        assert!(self.0.free(block).is_ok());
    }
}

struct OnStream {
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
}

impl Side for OnStream {
    fn alloc(&mut self, bytes: u64) -> Option<Block> {
        self.memory.alloc(&self.stream, bytes).ok()
    }

    fn free(&mut self, block: Block) {
        assert!(self.memory.free(&self.stream, block).is_ok());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Bare,
    Locked,
    Device {
        threads: usize,
        arenas: ArenaPolicy,
        check_captures: bool,
    },
}

impl Contender {
    fn name(self) -> String {
        match self {
            Self::Bare => "best fit, bare".to_owned(),
            Self::Locked => "over pages, behind its lock".to_owned(),
            Self::Device {
                threads,
                arenas,
                check_captures,
            } => {
                let checks = match check_captures {
                    true => ", captures looked for",
                    false => "",
                };
                format!(
                    "DeviceAllocator, arenas {arenas:?}, threads and streams: {threads}{checks}"
                )
            }
        }
    }

    fn threads(self) -> usize {
        match self {
            Self::Device { threads, .. } => threads,
            _ => 1,
        }
    }

    /// The time of all pairs, from the first thread's start to the last one's end.
    fn time(self, context: &Context, scripts: &[Script]) -> Option<Duration> {
        match self {
            Self::Bare => {
                let table = vec![Chunk::VACANT; CHUNKS].leak();
                let mut bfc = RegionPool::new(RegionConfig::fixed(), table).ok()?;
                bfc.add_region(addresses()?).ok()?;
                let mut side = Bare(bfc);
                let (begun, ended) = run(&mut side, scripts.first()?, &Barrier::new(1))?;
                give(side.0.into_table());
                Some(ended - begun)
            }
            Self::Locked => {
                let pool = Locked::pool(u64::MAX)?;
                let mut side = Locked(&pool, StreamId::MAIN);
                let (begun, ended) = run(&mut side, scripts.first()?, &Barrier::new(1))?;
                Locked::give(pool);
                Some(ended - begun)
            }
            Self::Device {
                threads,
                arenas,
                check_captures,
            } => {
                let config = DeviceConfig {
                    address_bytes: RANGE_BYTES,
                    arenas,
                    check_captures,
                    ..DeviceConfig::new()
                };
                let memory = DeviceAllocator::with_config(context, config).ok()?;
                let start = Barrier::new(threads);
                let times: Option<Vec<_>> = std::thread::scope(|scope| {
                    let threads: Vec<_> = scripts
                        .iter()
                        .take(threads)
                        .map(|script| {
                            let (memory, start) = (memory.clone(), &start);
                            let stream = context.cudarc().new_stream();
                            scope.spawn(move || {
                                let stream = stream.ok()?;
                                run(&mut OnStream { memory, stream }, script, start)
                            })
                        })
                        .collect();
                    threads
                        .into_iter()
                        .map(|thread| thread.join().ok()?)
                        .collect()
                });
                let times = times?;
                let begun = times.iter().map(|(begun, _)| *begun).min()?;
                let ended = times.iter().map(|(_, ended)| *ended).max()?;
                Some(ended - begun)
            }
        }
    }
}

fn give<T>(table: &'static mut [T]) {
    // SAFETY: each table was leaked as a vector's boxed slice, and this is the only reference.
    drop(unsafe { Box::from_raw(table) });
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What the command line asks for.
struct Args {
    live: Vec<usize>,
    rounds: usize,
    pairs: usize,
    threads: Vec<usize>,
    /// One contender only, for counting its instructions.
    only: Option<usize>,
}

fn args() -> Result<Args, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut args = Args {
        live: vec![100, 1_000, 10_000],
        rounds: 15,
        pairs: 200_000,
        threads: [2, 4, 8, 16].into_iter().filter(|n| *n <= cores).collect(),
        only: None,
    };
    let mut words = std::env::args().skip(1);
    let mut is_bench = false;
    while let Some(word) = words.next() {
        let mut numbers = |least: usize| -> Result<Vec<usize>, String> {
            let text = words.next().ok_or(format!("{word} wants a number"))?;
            let numbers = text
                .split(',')
                .map(|number| number.parse().ok().filter(|number| *number >= least));
            numbers
                .collect::<Option<_>>()
                .ok_or(format!("{word} {text}: give numbers of {least} or more"))
        };
        match word.as_str() {
            "--bench" => is_bench = true,
            "--live" => args.live = numbers(1)?,
            "--threads" => args.threads = numbers(1)?,
            "--only" => args.only = numbers(0)?.first().copied(),
            "--rounds" => args.rounds = *numbers(1)?.first().unwrap_or(&15),
            "--pairs" => args.pairs = *numbers(1)?.first().unwrap_or(&200_000),
            other => {
                return Err(format!(
                    "{other}: not known; --live, --rounds, --pairs, --threads, --only"
                ));
            }
        }
    }
    if !is_bench {
        // As a test: that it runs.
        (args.live, args.rounds, args.pairs) = (vec![100], 1, 1_000);
    }
    Ok(args)
}

/// The allocator with the arenas that it comes with.
fn device(threads: usize, check_captures: bool) -> Contender {
    Contender::Device {
        threads,
        arenas: DeviceConfig::new().arenas,
        check_captures,
    }
}

/// Where one thread's time stands in a round.
const fn r_one(args: &Args) -> usize {
    if args.only.is_some() { 0 } else { 2 }
}

fn main() -> ExitCode {
    match table() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn table() -> Result<(), Box<dyn std::error::Error>> {
    let args = args()?;
    println!("{}\n", load_from_env()?);
    let context = Context::new(0)?;
    let mut contenders = vec![
        Contender::Bare,
        Contender::Locked,
        device(1, false),
        device(1, true),
    ];
    contenders.extend(args.threads.iter().flat_map(|threads| {
        let always = Contender::Device {
            threads: *threads,
            arenas: ArenaPolicy::Always,
            check_captures: false,
        };
        [device(*threads, false), always]
    }));
    if let Some(only) = args.only {
        contenders = contenders.into_iter().skip(only).take(1).collect();
    }
    println!(
        "Medians of {} alternated rounds of {} pairs a thread.\n",
        args.rounds, args.pairs
    );
    println!(
        "| live a thread | contender | ns a pair and thread | x bare | pairs in the same time, x one thread |"
    );
    println!("|---:|---|---:|---:|---:|");
    let one = r_one(&args);
    for &live in &args.live {
        let max = args.threads.iter().copied().max().unwrap_or(1);
        let scripts: Vec<_> = (0..max.max(1) as u64)
            .map(|seed| Script::new(live, args.pairs, seed + 1))
            .collect();
        let mut rounds: Vec<Vec<f64>> = Vec::new();
        for _ in 0..args.rounds {
            let times: Option<Vec<f64>> = contenders
                .iter()
                .map(|contender| Some(contender.time(&context, &scripts)?.as_nanos() as f64))
                .collect();
            rounds.push(times.ok_or("memory or a thread was short")?);
        }
        for (index, contender) in contenders.iter().enumerate() {
            let of = |f: &dyn Fn(&[f64]) -> f64| median(rounds.iter().map(|r| f(r)).collect());
            let ns = of(&|r| r[index] / args.pairs as f64);
            let to_bare = of(&|r| r[index] / r[0]);
            let threads = contender.threads() as f64;
            let scaled = of(&|r| threads * r[one] / r[index]);
            let scaled = match contender {
                Contender::Device { .. } => format!("{scaled:.2}"),
                _ => String::new(),
            };
            println!(
                "| {live} | {} | {ns:.1} | {to_bare:.2} | {scaled} |",
                contender.name()
            );
        }
    }
    match args.only {
        Some(_) => Ok(()),
        None => beside::table(&context, &Script::new(args.live[0], 10 * args.pairs, 1)),
    }
}
