//! Host time of one pair, an alloc and a free, of the LRU pool, by criterion: upstream's six sizes in
//! turn, with limits of 1, 100 and ones that grow. Upstream's rows are of its model, whose few kept
//! buffers stand in a vector, and take no lock.
//!
//! `cargo bench -p larder-benches --bench pool [-- --quick]`. One thread; ours takes its lock. The
//! sub-allocator adds and subtracts numbers, so a miss shows the pool's own cost and none of a driver's.

#![deny(unsafe_code)]

use std::cell::Cell;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larder_core::pool::{Pool, PoolAllocator, PoolConfig, PoolCounters};
use larder_core::{
    Addr, AddrRange, Align, BlockAllocator, GrowRequest, Request, SubAllocError, SubAllocator,
};
use larder_model::tensorflow::pool as upstream;

/// Those of upstream's own benchmark of allocators.
const SIZES: [u64; 6] = [256, 4096, 16_384, 524_288, 512, 1_048_576];

/// Gives ascending addresses and counts what is out.
#[derive(Default)]
struct Numbers {
    next: Cell<u64>,
    out_bytes: Cell<u64>,
}

impl SubAllocator for Numbers {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let start = self.next.get().next_multiple_of(request.align.bytes());
        let range = AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)?;
        // Long runs come round: what was given there went back long ago.
        self.next.set(range.end().get() & ((1 << 50) - 1));
        self.out_bytes.set(self.out_bytes.get() + range.bytes());
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.out_bytes.set(self.out_bytes.get() - range.bytes());
        Ok(())
    }
}

fn pool(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pool");
    group.throughput(Throughput::Elements(SIZES.len() as u64));
    for (name, limit, auto_resize) in [
        ("tensorflow, limit 1", 1, false),
        ("tensorflow, limit 100", 100, false),
        ("tensorflow, auto from 1", 1, true),
    ] {
        let pool = upstream::PoolAllocator::new(
            name,
            limit,
            auto_resize,
            upstream::NO_ROUNDING,
            Numbers::default(),
        );
        let Some(mut pool) = pool else {
            panic!("{name}: a limit above 0")
        };
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for bytes in SIZES {
                    match pool.alloc(black_box(bytes), Align::ONE) {
                        Some(block) => pool.free(block),
                        None => panic!("{name}: refused"),
                    }
                }
            });
        });
        report(name, pool.counters(), pool.limit_buffers());
        pool.clear();
        assert_eq!(pool.source().out_bytes.get(), 0, "{name} lost a buffer");
    }
    for (name, config) in [
        ("default, auto from 1", PoolConfig::new(1, u64::MAX)),
        ("default", PoolConfig::default()),
    ] {
        let pool = match Pool::new(config, 511) {
            Ok(pool) => PoolAllocator::<_>::new(pool, Numbers::default()),
            Err(error) => panic!("{name}: {error}"),
        };
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for bytes in SIZES {
                    match pool.alloc(black_box(&Request::new(bytes))) {
                        Ok(grant) => pool.free(grant.block).unwrap_or_else(|_| panic!("refused")),
                        Err(error) => panic!("{name}: {error}"),
                    }
                }
            });
        });
        report(name, pool.counters(), pool.report().limit_buffers);
        pool.trim();
        assert_eq!(pool.source().out_bytes.get(), 0, "{name} lost a buffer");
    }
    group.finish();
}

fn report(name: &str, counters: PoolCounters, limit_buffers: u32) {
    println!("{name}: {counters:?}, limit {limit_buffers}");
    assert_eq!(counters.put, counters.from_pool + counters.allocated);
}

criterion_group!(benches, pool);
criterion_main!(benches);
