//! Random sequences of all calls: the stand-in itself does not fail, no object is left over, and an ordinary program
//! works afterwards.

use std::collections::BTreeSet;
use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use larder_cuda_abi::Code;

use super::api::*;
use super::calls::CALLS;
use super::world::{Known, World, body};

/// Functions that succeeded at least once.
static SUCCEEDED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// Makes random calls on one thread.
fn calls(mut world: World, count: usize, seed: u64) {
    for _ in 0..count {
        if world.draw.rarely(150) {
            let times = 1 + world.draw.below(4) as u64;
            let skip = world.draw.below(20) as u64;
            let code = world.refusal();
            ok(larder_stand_in_fail(std::ptr::null(), skip, times, code));
        }
        let (name, code) = world.call();
        assert_ne!(code, Code::UNKNOWN, "{name}, seed {seed}");
        if code == Code::SUCCESS {
            SUCCEEDED.lock().unwrap().insert(name);
        }
    }
    // Resets the state of the thread, which may be used again.
    cuThreadExchangeStreamCaptureMode(&mut 0);
    while cuCtxPopCurrent_v2(&mut 0) == Code::SUCCESS {}
}

/// Destroys all objects.
fn clean_up(world: &World) {
    larder_stand_in_clear_failures();
    cuThreadExchangeStreamCaptureMode(&mut 0);
    while cuCtxPopCurrent_v2(&mut 0) == Code::SUCCESS {}
    for context in world.seen('C') {
        cuCtxDestroy_v2(context as usize);
    }
    for device in 0..2 {
        while cuDevicePrimaryCtxRelease_v2(device) == Code::SUCCESS {}
    }
    let context = made(|context| cuCtxCreate_v2(context, 0, 0));
    let (mapped, reserved) = {
        let known = world.known.lock().unwrap();
        (known.mapped.clone(), known.reserved.clone())
    };
    for (at, bytes) in mapped {
        cuMemUnmap(at, bytes as usize);
    }
    for (at, bytes) in reserved {
        cuMemAddressFree(at, bytes as usize);
    }
    for handle in world.seen('H') {
        while cuMemRelease(handle) == Code::SUCCESS {}
    }
    for at in world.seen('A') {
        cuMemFree_v2(at);
    }
    for exec in world.seen('X') {
        cuGraphExecDestroy(exec as usize);
    }
    for graph in world.seen('G') {
        cuGraphDestroy(graph as usize);
    }
    for pool in world.seen('P') {
        cuMemPoolDestroy(pool as usize);
    }
    for device in 0..2 {
        let pool = made(|pool| cuDeviceGetDefaultMemPool(pool, device));
        keep(pool, 0);
        ok(cuMemPoolTrimTo(pool, 0));
    }
    for descriptor in world.seen('K') {
        unsafe { libc::close(descriptor as i32) };
    }
    ok(cuCtxDestroy_v2(context));
}

fn ordinary() {
    ok(cuInit(0));
    let context = made(|context| cuCtxCreate_v2(context, 0, 0));
    let stream = made(|stream| cuStreamCreate(stream, 0));
    let (a, b) = (memory(4096), made(|at| cuMemAllocAsync(at, 4096, stream)));
    ok(cuMemsetD8Async(a, 42, 4096, stream));
    ok(cuMemcpyDtoDAsync_v2(b, a, 4096, stream));
    ok(cuStreamSynchronize(stream));
    assert_eq!(read(b, 4096), [42; 4096]);
    ok(cuMemFreeAsync(b, stream));
    ok(cuMemFree_v2(a));
    ok(cuCtxDestroy_v2(context));
}

/// Prints the seed and ends the process if a run hangs.
struct Watch(Arc<AtomicU64>);

impl Watch {
    fn new(seed: u64) -> Self {
        let over = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&over);
        thread::spawn(move || {
            let start = Instant::now();
            while seen.load(Ordering::SeqCst) == 0 {
                thread::sleep(Duration::from_millis(20));
                if start.elapsed() > Duration::from_secs(90) {
                    eprintln!("seed {seed} hangs");
                    std::process::abort();
                }
            }
        });
        Self(over)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

fn run(seed: u64, count: usize) {
    let _watch = Watch::new(seed);
    let mut draw = Draw::new(seed);
    larder_stand_in_clear_failures();
    larder_stand_in_reset(2, 64 << 20);
    ok(larder_stand_in_kernel(c"chaos".as_ptr(), Some(body)));
    ok(cuInit(0));
    larder_stand_in_schedule(draw.below(2) as u32, seed);
    let known = Arc::new(Mutex::new(Known::default()));
    let threads = draw.one(&[1, 1, 2, 3]);
    let context = made(|context| cuCtxCreate_v2(context, 0, 0));
    known
        .lock()
        .unwrap()
        .lists
        .insert('C', vec![context as u64]);
    thread::scope(|scope| {
        for thread in 0..threads {
            let known = &known;
            scope.spawn(move || {
                cuCtxPushCurrent_v2(context);
                calls(World::new(seed ^ (thread << 40), known), count, seed);
            });
        }
    });
    clean_up(&World::new(seed, &known));
    assert_eq!(alive(), "", "seed {seed}");
    for device in 0..2 {
        assert_eq!(larder_stand_in_used(device), 0, "seed {seed}");
    }
    assert!(
        !findings().contains("stand-in itself"),
        "{seed}: {}",
        findings()
    );
    larder_stand_in_clear_findings();
    larder_stand_in_schedule(draw.below(2) as u32, seed);
    ordinary();
    larder_stand_in_schedule(0, 0);
    assert_eq!(findings(), "", "seed {seed}");
    assert_eq!(larder_stand_in_used(0), 0, "seed {seed}");
}

#[test]
fn after_random_calls_nothing_is_left_and_all_works() {
    let _one = alone();
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("LARDER_CHAOS_SEED") {
        return run(seed, 2000);
    }
    // The threads of a run share the objects that they make, so a different set of calls succeeds each time. A function
    // that needs a graph succeeds two to five times in 60 runs.
    let all: BTreeSet<&str> = CALLS.iter().map(|(name, ..)| *name).collect();
    let mut never = Vec::new();
    for seed in 0..600 {
        run(seed, 2000);
        never = all
            .difference(&SUCCEEDED.lock().unwrap())
            .copied()
            .collect();
        // `cuModuleLoad` needs a file.
        if seed >= 59 && never.iter().all(|name| *name == "cuModuleLoad") {
            break;
        }
    }
    assert_eq!(never, ["cuModuleLoad"], "succeeded in no run");
    let soak = Duration::from_secs(number("LARDER_CHAOS_SECONDS").unwrap_or(0));
    let start = Instant::now();
    let mut seed = number("LARDER_CHAOS_FROM").unwrap_or(1000);
    while start.elapsed() < soak {
        run(seed, 3000);
        seed += 1;
    }
    if !soak.is_zero() {
        println!("soak: up to seed {seed}");
    }
}
