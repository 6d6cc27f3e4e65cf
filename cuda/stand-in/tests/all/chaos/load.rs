//! The stand-in stays usable with many objects of each kind: a test that takes a second took a
//! minute when the cost was quadratic. The times are printed (`--nocapture`) and not checked.

use std::ffi::c_void;
use std::time::Instant;

use super::api::*;

/// Runs `act` and prints how long it took.
fn timed<R>(what: &str, act: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = act();
    println!("{what}: {:.2?}", start.elapsed());
    result
}

#[test]
fn a_hundred_thousand_queued_copies() {
    let _gpu = gpu();
    for streams in [1, 8, 200] {
        let all: Vec<usize> = (0..streams).map(|_| stream()).collect();
        let (a, b) = (memory(1 << 20), memory(1 << 20));
        larder_stand_in_schedule(1, 1);
        timed(&format!("100,000 copies on {streams} streams"), || {
            for index in 0..100_000_u64 {
                let at = index % 1000 * 1000;
                let stream = all[index as usize % all.len()];
                ok(cuMemcpyDtoDAsync_v2(b + at, a + at, 1000, stream));
            }
            ok(cuCtxSynchronize());
        });
        larder_stand_in_schedule(0, 0);
        all.into_iter()
            .for_each(|stream| ok(cuStreamDestroy_v2(stream)));
    }
}

#[test]
fn fifty_thousand_live_blocks() {
    let _gpu = gpu();
    let all = timed("50,000 allocations", || {
        (0..50_000).map(|_| memory(512)).collect::<Vec<u64>>()
    });
    timed("50,000 fills and frees", || {
        for at in all {
            ok(cuMemsetD8Async(at, 1, 512, 0));
            ok(cuMemFree_v2(at));
        }
    });
}

#[test]
fn blocks_freed_beside_many_streams() {
    let _gpu = gpu();
    let all: Vec<usize> = (0..300).map(|_| stream()).collect();
    let at = memory(512 * 300);
    for (index, stream) in all.iter().enumerate() {
        ok(cuMemsetD8Async(at + 512 * index as u64, 1, 512, *stream));
    }
    timed("10,000 allocations and frees beside 300 streams", || {
        for _ in 0..10_000 {
            ok(cuMemFree_v2(memory(512)));
        }
    });
}

#[test]
fn fifty_thousand_blocks_of_a_pool() {
    let _gpu = gpu();
    let stream = stream();
    let pool = made(|pool| cuMemPoolCreate(pool, &pool_props(0)));
    keep(pool, u64::MAX);
    let all = |sizes: usize| -> Vec<u64> {
        (0..50_000)
            .map(|index| 512 * (1 + index % sizes))
            .map(|bytes| made(|at| cuMemAllocFromPoolAsync(at, bytes, pool, stream)))
            .collect()
    };
    for sizes in [1, 100] {
        for round in ["new", "again"] {
            timed(&format!("50,000 of a pool, {sizes} sizes, {round}"), || {
                for at in all(sizes) {
                    ok(cuMemFreeAsync(at, stream));
                }
            });
        }
    }
    timed("a pool of 50,000 given back", || {
        keep(pool, 0);
        ok(cuStreamSynchronize(stream));
    });
    assert_eq!(larder_stand_in_used(0), 0);
}

#[test]
fn twenty_thousand_queued_frees_of_plain_memory() {
    let _gpu = gpu();
    let stream = stream();
    let all: Vec<u64> = (0..20_000).map(|_| memory(512)).collect();
    larder_stand_in_schedule(1, 1);
    timed("20,000 queued frees", || {
        all.into_iter()
            .for_each(|at| ok(cuMemFreeAsync(at, stream)));
        ok(cuStreamSynchronize(stream));
    });
    assert_eq!(larder_stand_in_used(0), 0);
}

#[test]
fn twenty_thousand_mappings() {
    let _gpu = gpu();
    let handle = made(|handle| cuMemCreate(handle, GRANULARITY, &physical(0), 0));
    let all = timed("20,000 mappings", || {
        (0..20_000)
            .map(|_| map(handle, GRANULARITY))
            .collect::<Vec<u64>>()
    });
    timed("20,000 unmappings", || {
        for at in all {
            ok(cuMemUnmap(at, GRANULARITY));
            ok(cuMemAddressFree(at, GRANULARITY));
        }
    });
}

#[test]
fn ten_thousand_events() {
    let _gpu = gpu();
    let streams: Vec<usize> = (0..8).map(|_| stream()).collect();
    larder_stand_in_schedule(1, 1);
    timed("10,000 events recorded and waited for", || {
        let all: Vec<usize> = (0..10_000).map(|_| event()).collect();
        for (index, event) in all.iter().enumerate() {
            ok(cuEventRecord(*event, streams[index % 8]));
            ok(cuStreamWaitEvent(streams[(index + 1) % 8], *event, 0));
        }
        all.iter().for_each(|event| ok(cuEventSynchronize(*event)));
        all.into_iter()
            .for_each(|event| ok(cuEventDestroy_v2(event)));
    });
}

#[test]
fn twenty_thousand_streams_that_come_and_go() {
    let _gpu = gpu();
    let (at, done) = (memory(20_000 * 8), event());
    let first = stream();
    // The host waits for none of these streams; the first stream waits for all.
    for (what, bytes) in [("the same memory", 0), ("its own memory", 8)] {
        timed(&format!("20,000 streams, each writes {what}"), || {
            for index in 0..20_000_u64 {
                let one = stream();
                ok(cuStreamWaitEvent(one, done, 0));
                ok(cuMemsetD8Async(at + bytes * index, 1, 8, one));
                ok(cuEventRecord(done, one));
                ok(cuStreamWaitEvent(first, done, 0));
                ok(cuStreamDestroy_v2(one));
                if bytes > 0 && index % 1000 == 0 {
                    ok(cuStreamSynchronize(first));
                }
            }
        });
    }
    ok(cuCtxSynchronize());
    assert_eq!(findings(), "");
}

#[test]
fn the_legacy_stream_beside_a_thousand() {
    let _gpu = gpu();
    let at = memory(1 << 20);
    let all: Vec<usize> = (0..1000)
        .map(|_| made(|stream| cuStreamCreate(stream, 0)))
        .collect();
    timed("1,000 streams and the legacy one, ten times", || {
        for _ in 0..10 {
            for (index, stream) in all.iter().enumerate() {
                ok(cuMemsetD8Async(at + 8 * index as u64, 1, 8, *stream));
            }
            for _ in 0..100 {
                ok(cuMemsetD8Async(at, 1, 8, 0));
            }
        }
    });
    assert_eq!(findings(), "");
}

extern "C" fn nothing(_: *mut c_void) {}

#[test]
fn two_thousand_host_functions() {
    let _gpu = gpu();
    for deferred in [0, 1] {
        larder_stand_in_schedule(deferred, 5);
        let streams: Vec<usize> = (0..4).map(|_| stream()).collect();
        // A wait that misses its wake-up would take 50 or 100 ms.
        timed("2,000 host functions", || {
            for index in 0..2000 {
                ok(cuLaunchHostFunc(streams[index % 4], Some(nothing), 0));
            }
            ok(cuCtxSynchronize());
        });
    }
}
