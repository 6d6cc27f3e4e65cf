//! Host time of one pair, an alloc and a free, in the LRU pool, in alternating rounds: the six sizes of TensorFlow's
//! benchmark in turn, with limits of 1 and 100 buffers and limits that grow. TensorFlow's rows are from a model of
//! its pool, which keeps its few buffers in a vector and takes no lock.
//!
//! `cargo bench -p larder-benches --bench pool` prints a markdown table. There is one thread; our pool takes its lock.
//! The sub-allocator only adds and subtracts numbers, so a miss shows the cost of the pool, without that of a
//! driver.
//!
//! Without `--bench`, as under `cargo test --benches`, it runs only a few pairs.

#![deny(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use larder_benches::exit_code;
use larder_benches::rounds::Rounds;
use larder_cli::Table;
use larder_core::pool::{Pool, PoolAllocator, PoolConfig, PoolCounters};
use larder_core::{
    Addr, AddrRange, Align, BlockAllocator, GrowRequest, Request, SubAllocError, SubAllocator,
};
use larder_model::tensorflow::pool as upstream;

/// The sizes of TensorFlow's benchmark of allocators.
const SIZES: [u64; 6] = [256, 4096, 16_384, 524_288, 512, 1_048_576];

/// A sub-allocator that returns ascending addresses and counts the bytes in use.
#[derive(Default)]
struct Numbers {
    next: Cell<u64>,
    out_bytes: Cell<u64>,
}

impl SubAllocator for Numbers {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let start = self.next.get().next_multiple_of(request.align.bytes());
        let range = AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)?;
        // Addresses wrap around in long runs; earlier ranges there were released long before.
        self.next.set(range.end().get() & ((1 << 50) - 1));
        self.out_bytes.set(self.out_bytes.get() + range.bytes());
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.out_bytes.set(self.out_bytes.get() - range.bytes());
        Ok(())
    }
}

/// A pool, TensorFlow's or ours, and its name in the table.
enum PoolContender {
    Upstream(&'static str, upstream::PoolAllocator<Numbers>),
    Ours(&'static str, Box<PoolAllocator<Numbers>>),
}

impl PoolContender {
    fn upstream(name: &'static str, limit: u32, auto_resize: bool) -> Result<Self, String> {
        let rounding = upstream::NO_ROUNDING;
        let pool =
            upstream::PoolAllocator::new(name, limit, auto_resize, rounding, Numbers::default());
        Ok(Self::Upstream(name, pool.ok_or("a limit of 0")?))
    }

    fn ours(name: &'static str, config: PoolConfig) -> Result<Self, Box<dyn Error>> {
        let pool = Pool::new(config, 511)?;
        let pool = PoolAllocator::new(pool, Numbers::default());
        Ok(Self::Ours(name, Box::new(pool)))
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Upstream(name, _) | Self::Ours(name, _) => name,
        }
    }

    /// Runs each size in turn `times` times. Returns the nanoseconds of a pair.
    fn time(&mut self, times: usize) -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        for bytes in (0..times).flat_map(|_| SIZES) {
            match self {
                Self::Upstream(_, pool) => {
                    let block = pool.alloc(black_box(bytes), Align::ONE);
                    pool.free(block.ok_or("refused")?);
                }
                Self::Ours(_, pool) => {
                    let grant = pool.alloc(black_box(&Request::new(bytes)))?;
                    pool.free(grant.block).map_err(|rejected| rejected.error)?;
                }
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / (times * SIZES.len()) as f64)
    }

    /// Releases every kept buffer and checks that none is lost. Returns the counters, and the limit in buffers.
    fn finish(&mut self) -> Result<(PoolCounters, u32), String> {
        let (counters, limit_buffers, out_bytes) = match self {
            Self::Upstream(_, pool) => {
                let seen = (pool.counters(), pool.limit_buffers());
                pool.clear();
                (seen.0, seen.1, pool.source().out_bytes.get())
            }
            Self::Ours(_, pool) => {
                let seen = (pool.counters(), pool.report().limit_buffers);
                pool.trim();
                (seen.0, seen.1, pool.source().out_bytes.get())
            }
        };
        if out_bytes != 0 || counters.put != counters.from_pool + counters.allocated {
            return Err(format!(
                "{}: {out_bytes} bytes are lost, {counters:?}",
                self.name()
            ));
        }
        Ok((counters, limit_buffers))
    }
}

fn main() -> ExitCode {
    exit_code(print_table())
}

fn print_table() -> Result<(), Box<dyn Error>> {
    let measures = std::env::args().any(|argument| argument == "--bench");
    let (rounds, times) = if measures { (15, 20_000) } else { (2, 100) };
    let mut contenders = [
        PoolContender::upstream("tensorflow, limit 1", 1, false)?,
        PoolContender::upstream("tensorflow, limit 100", 100, false)?,
        PoolContender::upstream("tensorflow, auto from 1", 1, true)?,
        PoolContender::ours("larder, auto from 1", PoolConfig::new(1, u64::MAX))?,
        PoolContender::ours("larder, default", PoolConfig::default())?,
    ];
    let measured = Rounds::run(&mut contenders, rounds, |contender| contender.time(times))?;
    let headings = ["pool", "ns per pair", "from the pool", "limit in buffers"];
    let mut table = Table::new(headings);
    for (place, contender) in contenders.iter_mut().enumerate() {
        let (counters, limit_buffers) = contender.finish()?;
        table.row([
            contender.name().to_owned(),
            format!("{:.1}", measured.median(place)),
            format!("{:.3}", counters.from_pool as f64 / counters.put as f64),
            limit_buffers.to_string(),
        ]);
    }
    println!(
        "Medians of {rounds} alternated rounds. The rows of tensorflow are its model, without a lock.\n\n{}",
        table.markdown()
    );
    Ok(())
}
