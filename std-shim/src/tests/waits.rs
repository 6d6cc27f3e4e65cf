//! Long waits: a lock's holder may be off the processor for long, and a system may allocate inside
//! a call.

use std::alloc::Layout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{ptr, thread};

use larder_core::small::{RemoteQueue, SizeClass, SpanSet};

use super::drive::World;
use super::faulty::{Below, Faulty, Plan};
use crate::arena::ClaimOutcome;
use crate::config::Config;
use crate::process::Process;
use crate::thread::end::ExitHook;
use crate::thread::local::Local;

const MIB: usize = 1 << 20;

fn world() -> World {
    World::with(
        Faulty::new(Plan::Willing),
        1,
        1,
        64 * MIB,
        &Config::BALANCED,
    )
}

/// Long enough for a waiting thread to be seen waiting.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn large_blocks_come_and_go_while_the_holder_of_an_arenas_lock_sleeps() {
    let world = world();
    let process = world.verbs().process;
    let mut before = Vec::new();
    for size in [200_000, 300_000, 4 * MIB] {
        before.push((process.alloc_large(size, 16).unwrap(), size));
    }
    let first = process.arenas().next().unwrap();
    let live = first.numbers().0;
    let exposed =
        |(block, size): &(ptr::NonNull<u8>, usize)| (block.as_ptr().expose_provenance(), *size);
    let blocks: Vec<(usize, usize)> = before.iter().map(exposed).collect();
    let (say, hear) = mpsc::channel();
    first.while_locked(|| {
        let other = thread::spawn(move || {
            for (addr, size) in blocks {
                let block = ptr::with_exposed_provenance_mut(addr);
                assert!(process.free_large(block, size), "left to the next holder");
            }
            let mut blocks = Vec::new();
            for size in [200_000, 1_000_000] {
                let block = process.alloc_large(size, 16).unwrap();
                blocks.push((block.as_ptr().expose_provenance(), size));
            }
            say.send(blocks).unwrap();
        });
        let blocks = hear.recv_timeout(LONG);
        let blocks: Vec<(usize, usize)> = blocks.unwrap();
        other.join().unwrap();
        assert!(first.has_deferred());
        for (addr, size) in blocks {
            let block: *mut u8 = ptr::with_exposed_provenance_mut(addr);
            assert!(!first.contains(block), "another arena serves meanwhile");
            assert!(process.free_large(block, size));
        }
    });
    let granted: u64 = before
        .iter()
        .map(|(_, size)| first.granted_bytes(*size))
        .sum();
    assert_eq!(live - first.numbers().0, granted);
    world.assert_sound();
    assert_eq!(process.arenas().count(), 2);
    world.end();
}

#[test]
fn a_block_that_is_long_enough_is_resized_where_it_is_while_the_holder_of_an_arenas_lock_sleeps() {
    let world = world();
    let process = world.verbs().process;
    let block = process.alloc_large(200_000, 16).unwrap();
    let first = process.arenas().next().unwrap();
    let granted = first.granted_bytes(200_000);
    let addr = block.as_ptr().expose_provenance();
    let (say, hear) = mpsc::channel();
    first.while_locked(|| {
        let other = thread::spawn(move || {
            let block: *mut u8 = ptr::with_exposed_provenance_mut(addr);
            assert_eq!(first.bytes_at(block), Some(granted));
            let sizes = [200_100, granted as usize, 199_000];
            assert!(
                sizes
                    .windows(2)
                    .all(|pair| first.has_room(block, pair[0], pair[1]))
            );
            say.send(()).unwrap();
        });
        hear.recv_timeout(LONG).unwrap();
        other.join().unwrap();
    });
    for (bytes, resized) in [(400_000, 400_000), (150_000, 150_000), (300_000, 300_000)] {
        assert!(process.resize_large(block.as_ptr(), 200_000, bytes));
        assert_eq!(
            first.bytes_at(block.as_ptr()),
            Some(first.granted_bytes(resized))
        );
    }
    assert!(process.free_large(block.as_ptr(), 300_000));
    assert_eq!(first.bytes_at(block.as_ptr()), None);
    assert!(!process.free_large(block.as_ptr(), 300_000), "twice");
    world.end();
}

#[test]
fn the_next_holder_of_an_arenas_lock_frees_a_bounded_number_of_what_waits_for_it() {
    const SIZE: usize = 150_000;
    let world = world();
    let process = world.verbs().process;
    let block = |_| process.alloc_large(SIZE, 16).unwrap().as_ptr();
    let blocks: Vec<usize> = (0..200)
        .map(block)
        .map(|block| block.expose_provenance())
        .collect();
    let first = process.arenas().next().unwrap();
    first.while_locked(|| {
        let free_all = move || {
            for addr in blocks {
                assert!(process.free_large(ptr::with_exposed_provenance_mut(addr), SIZE));
            }
        };
        thread::spawn(free_all).join().unwrap();
    });
    let live = [(); 2].map(|()| first.numbers().0);
    assert!(live[0] > live[1], "{live:?}: the first one left some");
    assert_eq!(live[1], 0);
    assert!(!first.has_deferred());
    world.end();
}

#[test]
fn a_call_uses_the_set_of_another_heap_while_the_holder_of_its_own_sleeps() {
    let world = world();
    let process = world.verbs().process;
    process.share_after(2);
    let [first, second, secondary] = [(); 3].map(|()| process.adopt().unwrap());
    assert!(secondary.is_secondary());
    for (locked, free) in [(first, second), (second, first)] {
        for heap in [locked, secondary] {
            let (say, hear) = mpsc::channel();
            let used = move || {
                // SAFETY: only this thread uses the heap now.
                let used = unsafe { process.pool.with_set(heap, |queue, _| queue.addr()) };
                say.send(used).unwrap();
            };
            let wait = |_: *const RemoteQueue, _: &mut SpanSet| {
                let other = thread::spawn(used);
                let used = hear.recv_timeout(LONG);
                assert_eq!(used, Ok(ptr::from_ref(free.remote_queue()).addr()));
                other.join().unwrap();
            };
            // SAFETY: the set stays where it is.
            unsafe { locked.with(wait) };
        }
    }
    for heap in [first, second, secondary] {
        // SAFETY: adopted above, and no longer used.
        unsafe { process.park(heap) };
    }
    world.end();
}

type Call = Box<dyn FnOnce(&mut Local) + Send>;

/// Makes `call` in a thread with a heap while a fork waits for a lock. Returns whether it ended
/// before the fork had all locks.
fn overtakes_a_fork(process: &'static Process<Below>, call: Call) -> bool {
    let has_locks = Arc::new(AtomicBool::new(false));
    let fork = |has_locks: Arc<AtomicBool>| {
        // SAFETY: the thread holds no lock of the process.
        unsafe { process.lock_all() };
        has_locks.store(true, Ordering::SeqCst);
        // SAFETY: locked just now.
        unsafe { process.unlock_all() };
    };
    let (may_call, begins) = mpsc::channel();
    let (is_ready, ready) = mpsc::channel();
    let sees = Arc::clone(&has_locks);
    let caller = thread::spawn(move || {
        let mut local = Local::new();
        let heap = local.begin_attach(0, process).unwrap();
        local.attach(heap, ExitHook::Yes, process);
        is_ready.send(()).unwrap();
        begins.recv().unwrap();
        call(&mut local);
        let overtakes = !sees.load(Ordering::SeqCst);
        local.end(process);
        overtakes
    });
    ready.recv().unwrap();
    let fork = process.work.with(|_| {
        let waits = || process.waits_for_forks.load(Ordering::SeqCst);
        let before = waits();
        let fork = thread::spawn(move || fork(has_locks));
        while process.forks.0.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        may_call.send(()).unwrap();
        while waits() == before && !caller.is_finished() {
            thread::yield_now();
        }
        fork
    });
    fork.join().unwrap();
    caller.join().unwrap()
}

#[test]
fn a_slow_call_that_begins_while_a_fork_waits_for_a_lock_begins_after_the_fork() {
    const SIZE: usize = 3 << 20;
    let world = world();
    let process = world.verbs().process;
    let layout = Layout::from_size_align(SIZE, 16).unwrap();
    let blocks = [(); 2].map(|()| process.alloc_large(SIZE, 16).unwrap().as_ptr());
    let addrs = blocks.map(<*mut u8>::expose_provenance);
    let [resized, grown] = [0, 1].map(|at| move || ptr::with_exposed_provenance_mut(addrs[at]));
    let small = SizeClass::of(100, 8).unwrap();
    let refill = move |local: &mut Local| {
        let block = local.refill(small, process).unwrap().block;
        // SAFETY: allocated just now.
        unsafe { local.free_slow(small, block.as_ptr(), process) };
    };
    let claim = move |_: &mut Local| {
        if let ClaimOutcome::Found(block) = process.alloc_held(SIZE, 16) {
            assert!(process.free_large(block.as_ptr(), SIZE));
        }
    };
    let adopt = move |_: &mut Local| {
        let heap = process.adopt().unwrap();
        // SAFETY: adopted just now, and not used.
        unsafe { process.park(heap) };
    };
    let alloc = move |_: &mut Local| {
        let block = process.alloc_large(SIZE, 16).unwrap();
        assert!(process.free_large(block.as_ptr(), SIZE));
    };
    let resize = move |_: &mut Local| assert!(process.resize_large(resized(), SIZE, SIZE / 2));
    let grow = move |_: &mut Local| {
        // SAFETY: only this thread uses the block.
        let block = unsafe { process.grow_elsewhere(grown(), layout, 2 * SIZE) };
        assert!(process.free_large(block.unwrap().block.as_ptr(), 2 * SIZE));
    };
    let calls: [(&str, Call); 8] = [
        ("none", Box::new(|_| ())),
        ("adopt", Box::new(adopt)),
        ("refill", Box::new(refill)),
        ("flush", Box::new(move |local| local.flush(process))),
        ("alloc", Box::new(alloc)),
        ("claim", Box::new(claim)),
        ("resize", Box::new(resize)),
        ("grow", Box::new(grow)),
    ];
    for (name, call) in calls {
        assert_eq!(overtakes_a_fork(process, call), name == "none", "{name}");
    }
    assert!(process.free_large(resized(), SIZE / 2));
    world.end();
}

#[test]
fn memory_for_heaps_that_another_thread_has_added_meanwhile_is_used_and_a_second_piece_freed() {
    let world = world();
    let process = world.verbs().process;
    let first = process.take_from_new_piece(4096).unwrap();
    let (live, bytes) = (process.live_bytes(), process.meta_bytes());
    let second = process.take_from_new_piece(4096).unwrap();
    assert_eq!(second, first.wrapping_add(4096));
    assert_eq!((process.live_bytes(), process.meta_bytes()), (live, bytes));
    world.end();
}

#[test]
fn a_system_that_allocates_to_tell_of_a_threads_end_gets_blocks_of_borrowed_heaps() {
    let world = world();
    let (verbs, process) = (world.verbs(), world.verbs().process);
    let layout = Layout::new::<[u8; 100]>();
    let class = SizeClass::of(layout.size(), layout.align()).unwrap();
    for told in [ExitHook::Yes, ExitHook::Never] {
        let mut local = Local::new();
        let heap = local.begin_attach(0, process).unwrap();
        assert!(local.begin_attach(0, process).is_none(), "once");
        let mut blocks = Vec::new();
        for _ in 0..100 {
            let block = verbs.alloc(&mut local, layout, false);
            assert!(!block.is_null());
            blocks.push(block);
        }
        verbs.free(&mut local, blocks.pop().unwrap(), layout);
        assert_eq!(local.ready_blocks(class), 0, "the thread has no cache yet");
        local.attach(heap, told, process);
        for block in blocks {
            verbs.free(&mut local, block, layout);
        }
        assert_eq!(local.ready_blocks(class) > 0, told == ExitHook::Yes);
        local.end(process);
    }
    let mut heaps = 0;
    process.pool.for_each(|_| heaps += 1);
    assert_eq!(heaps, 2, "the thread's, and one to borrow");
    world.end();
}
