//! Host time of one pair, an alloc and a free, of the LRU pool, by criterion: upstream's six sizes in
//! turn, with limits of 1, 100 and ones that grow.
//!
//! `cargo bench -p larder-bench --bench pool [-- --quick]`. One thread; the lock is taken. The
//! sub-allocator adds and subtracts numbers, so a miss shows the pool's own cost and none of a driver's.

#![deny(unsafe_code)]

use std::cell::Cell;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larder_core::pool::{Buffer, LimitGrowth, Pool, PoolAllocator, PoolConfig};
use larder_core::{
    Addr, AddrRange, BlockAllocator, GrowRequest, Request, SubAllocError, SubAllocator,
};

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
    let fixed = |limit| PoolConfig {
        growth: LimitGrowth::Never,
        ..PoolConfig::tensorflow(limit)
    };
    let contenders = [
        ("tensorflow, limit 1", fixed(1)),
        ("tensorflow, limit 100", fixed(100)),
        ("tensorflow, auto from 1", PoolConfig::tensorflow(1)),
        ("default, auto from 1", PoolConfig::new(1, u64::MAX)),
        ("default", PoolConfig::default()),
    ];
    let mut group = criterion.benchmark_group("pool");
    group.throughput(Throughput::Elements(SIZES.len() as u64));
    for (name, config) in contenders {
        let mut buffers = vec![Buffer::VACANT; 512];
        let mut slots = vec![0; 1024];
        let pool = match Pool::new(config, &mut buffers, &mut slots) {
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
        let counters = pool.counters();
        println!(
            "{name}: {counters:?}, limit {}",
            pool.report().limit_buffers
        );
        assert_eq!(counters.put, counters.from_pool + counters.allocated);
        pool.trim();
        assert_eq!(pool.source().out_bytes.get(), 0, "{name} lost a buffer");
    }
    group.finish();
}

criterion_group!(benches, pool);
criterion_main!(benches);
