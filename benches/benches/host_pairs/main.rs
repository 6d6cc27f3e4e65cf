//! Host time of a free and an alloc of device memory, compared with the bare algorithm, and with several threads
//! on streams of their own.
//!
//! `cargo bench -p larder-benches --bench host_pairs [-- --live 1000 --rounds 15 --threads 2]` prints a
//! markdown table. Each thread keeps `live` blocks, frees one at random and allocates another of a random size,
//! 256 bytes to 64 KiB, with each power of two equally likely. All contenders take turns in each round. A pair
//! makes one driver call, to check for a capture (`DeviceConfig::check_captures`); apart from this call, the driver
//! hardly matters. A run takes a few seconds. A second table has the times of a thread's calls while another
//! thread moves pages.

mod beside;

use std::error::Error;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use clap::Parser;
use larder_benches::exit_code;
use larder_benches::rounds::Rounds;
use larder_cli::Table;
use larder_cli::random::Random;
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
/// Bytes of each contender's address range, more than are live at any time.
const RANGE_BYTES: u64 = 3 << 30;
const PAGE_BYTES: u64 = 2 << 20;

/// Draws a size from 256 bytes to 64 KiB, with each power of two equally likely.
fn size(random: &mut Random) -> u64 {
    let base = 256 << random.below(8);
    u64::from(base + random.below(base))
}

/// A thread's requests, drawn before the clock starts.
struct DeviceScript {
    first: Vec<u64>,
    /// The index of the block to free, and the size of the next one.
    pairs: Vec<(usize, u64)>,
}

impl DeviceScript {
    fn new(live: usize, pairs: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            first: (0..live).map(|_| size(&mut random)).collect(),
            pairs: (0..pairs)
                .map(|_| (random.index(live), size(&mut random)))
                .collect(),
        }
    }
}

/// One thread's access to an allocator.
trait Side {
    fn alloc(&mut self, bytes: u64) -> Option<Block>;
    fn free(&mut self, block: Block);
}

/// Runs a script. Returns the times at which its pairs began and ended, or `None` if memory was short.
fn run(side: &mut impl Side, script: &DeviceScript, start: &Barrier) -> Option<(Instant, Instant)> {
    let first = script.first.iter().map(|bytes| side.alloc(*bytes));
    let first: Option<Vec<Block>> = first.collect();
    let mut blocks: Vec<Option<Block>> = first?.into_iter().map(Some).collect();
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

/// A driver that grants every call.
struct Yes;

impl PageDriver for Yes {
    fn call(&self, _: PageCall) -> Result<(), SubAllocError> {
        Ok(())
    }
}

/// A page pool behind its lock, used on one stream.
struct LockedPages<'p>(&'p Shared<PagePool<'static>, Yes>, StreamId);

impl LockedPages<'_> {
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

impl Side for LockedPages<'_> {
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

    /// Returns the time from the start of the first thread to the end of the last, or `None` if memory was short.
    fn time(self, context: &Context, scripts: &[DeviceScript]) -> Option<Duration> {
        match self {
            Self::Bare => {
                let table = vec![Chunk::VACANT; CHUNKS].leak();
                let mut pool = RegionPool::new(RegionConfig::fixed(), table).ok()?;
                pool.add_region(addresses()?).ok()?;
                let mut side = Bare(pool);
                let (begun, ended) = run(&mut side, scripts.first()?, &Barrier::new(1))?;
                give(side.0.into_table());
                Some(ended - begun)
            }
            Self::Locked => {
                let pool = LockedPages::pool(u64::MAX)?;
                let mut side = LockedPages(&pool, StreamId::MAIN);
                let (begun, ended) = run(&mut side, scripts.first()?, &Barrier::new(1))?;
                LockedPages::give(pool);
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
    // SAFETY: each table is a leaked boxed slice, and this is the only reference to it.
    drop(unsafe { Box::from_raw(table) });
}

/// Compares the host time of a free and an alloc of device memory.
#[derive(Debug, Parser)]
struct Args {
    /// Live blocks of a thread
    #[arg(long, value_delimiter = ',', default_value = "100,1000,10000", value_parser = at_least_one)]
    live: Vec<usize>,
    /// Rounds; in each, every contender runs once
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Pairs of each thread in each round
    #[arg(long, default_value_t = 200_000, value_parser = at_least_one)]
    pairs: usize,
    /// Numbers of threads of the contenders with several; by default those of 2, 4, 8 and 16 for which each
    /// thread has a core
    #[arg(long, value_delimiter = ',', value_parser = at_least_one)]
    threads: Option<Vec<usize>>,
    /// Only the contender at this index in the table, from 0, to count its instructions
    #[arg(long)]
    only: Option<usize>,
    /// Set by `cargo bench`; without it only a few pairs run
    #[arg(long, hide = true)]
    bench: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "give a number of 1 or more".to_owned())
}

impl Args {
    fn threads(&self) -> Vec<usize> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let usual = [2, 4, 8, 16].into_iter().filter(|n| *n <= cores);
        self.threads.clone().unwrap_or_else(|| usual.collect())
    }

    /// Returns the contenders in the order of the table.
    fn contenders(&self) -> Vec<Contender> {
        let mut contenders = vec![
            Contender::Bare,
            Contender::Locked,
            device(1, false),
            device(1, true),
        ];
        contenders.extend(self.threads().into_iter().flat_map(|threads| {
            let always = Contender::Device {
                threads,
                arenas: ArenaPolicy::Always,
                check_captures: false,
            };
            [device(threads, false), always]
        }));
        if let Some(only) = self.only {
            contenders = contenders.into_iter().skip(only).take(1).collect();
        }
        contenders
    }
}

/// Returns the contender with the default arenas.
fn device(threads: usize, check_captures: bool) -> Contender {
    Contender::Device {
        threads,
        arenas: DeviceConfig::new().arenas,
        check_captures,
    }
}

fn main() -> ExitCode {
    exit_code(print_tables(Args::parse()))
}

fn print_tables(mut args: Args) -> Result<(), Box<dyn Error>> {
    if !args.bench {
        (args.live, args.rounds, args.pairs) = (vec![100], 1, 1_000);
    }
    println!("{}\n", load_from_env()?);
    let context = Context::new(0)?;
    let threads = args.threads();
    let mut contenders = args.contenders();
    // The row of the allocator with one thread, with which more threads are compared.
    let one = contenders
        .iter()
        .position(|contender| *contender == device(1, false))
        .unwrap_or(0);
    let headings = [
        "live a thread",
        "contender",
        "ns a pair and thread",
        "x bare",
        "pairs in the same time, x one thread",
    ];
    let mut table = Table::new(headings);
    for &live in &args.live {
        let seeds = 1..=threads.iter().copied().max().unwrap_or(1) as u64;
        let scripts: Vec<_> = seeds
            .map(|seed| DeviceScript::new(live, args.pairs, seed))
            .collect();
        let times = Rounds::run(&mut contenders, args.rounds, |contender| {
            let time = contender.time(&context, &scripts);
            time.map(|time| time.as_nanos() as f64 / args.pairs as f64)
                .ok_or("memory or a thread was short")
        })?;
        for (place, contender) in contenders.iter().enumerate() {
            let scaled = match contender {
                Contender::Device { threads, .. } => {
                    format!("{:.2}", *threads as f64 / times.ratios(place, one).median)
                }
                _ => String::new(),
            };
            table.row([
                live.to_string(),
                contender.name(),
                format!("{:.1}", times.median(place)),
                format!("{:.2}", times.ratios(place, 0).median),
                scaled,
            ]);
        }
    }
    let (rounds, pairs) = (args.rounds, args.pairs);
    println!(
        "Medians of {rounds} alternated rounds of {pairs} pairs a thread.\n\n{}",
        table.markdown()
    );
    match args.only {
        Some(_) => Ok(()),
        None => beside::print_table(
            &context,
            &DeviceScript::new(args.live[0], 10 * args.pairs, 1),
        ),
    }
}
