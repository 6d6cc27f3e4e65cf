//! Process exit, and the heap after panics.

use std::panic;
use std::process;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::HEAP;
use crate::common::{Held, Random};
use crate::known::{exercise, free, make, say, settle};
use crate::runner::{Case, Ends};

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "handlers at exit allocate and free after main has returned",
        handlers_after_main,
    )
    .ends(Ends::Says("second handler\nfirst handler\n")),
    Case::new(
        "handlers at exit allocate while other threads go on",
        handlers_beside_threads,
    )
    .ends(Ends::Says("second handler\nfirst handler\n"))
    .times(10),
    Case::new("another thread may end the process", another_thread_exits).times(10),
    Case::new(
        "main may return while detached threads allocate",
        main_returns,
    )
    .times(10),
    Case::new(
        "threads go on allocating when the main thread has ended",
        main_thread_ends,
    )
    .ends(Ends::Says("the others went on\n")),
    Case::new("a panic's unwinding frees everything", panics_unwind),
    Case::new("threads that panic leave nothing behind", threads_panic),
];

/// A block that `main` allocates and a handler frees.
static LEFT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn first_handler() {
    exercise();
    free(LEFT.load(Ordering::Relaxed), 5000);
    say("first handler\n");
}

extern "C" fn second_handler() {
    thread::spawn(exercise).join().unwrap();
    exercise();
    say("second handler\n");
}

fn register() {
    LEFT.store(make(5000), Ordering::Relaxed);
    for handler in [first_handler, second_handler] {
        // SAFETY: the handlers are functions of this program.
        assert_eq!(unsafe { libc::atexit(handler) }, 0);
    }
}

fn handlers_after_main() {
    register();
}

/// Starts threads that allocate and pass blocks to each other until the process ends.
fn detach_threads() {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static BETWEEN: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
    for seed in 1..4 {
        thread::spawn(move || {
            let mut random = Random::new(seed);
            let mut held = Vec::new();
            RUNNING.fetch_add(1, Ordering::Relaxed);
            loop {
                held.push(Held::random(&mut random));
                if held.len() > 100 {
                    held.clear();
                }
                let other = BETWEEN.swap(make(300), Ordering::AcqRel);
                if !other.is_null() {
                    free(other, 300);
                }
            }
        });
    }
    while RUNNING.load(Ordering::Relaxed) < 3 {
        thread::sleep(Duration::from_millis(1));
    }
}

fn handlers_beside_threads() {
    detach_threads();
    register();
    process::exit(0);
}

fn another_thread_exits() {
    detach_threads();
    thread::spawn(|| {
        exercise();
        process::exit(0);
    });
    loop {
        exercise();
    }
}

fn main_returns() {
    detach_threads();
}

unsafe extern "C-unwind" {
    /// Ends the calling thread by unwinding its stack, which `libc`'s declaration does not allow.
    fn pthread_exit(value: *mut libc::c_void) -> !;
}

fn main_thread_ends() {
    let block = make(3000).expose_provenance();
    // SAFETY: has no preconditions.
    let main = unsafe { libc::pthread_self() };
    thread::spawn(move || {
        // SAFETY: no other thread joins the main thread, which has ended when this returns.
        assert_eq!(unsafe { libc::pthread_join(main, std::ptr::null_mut()) }, 0);
        // Its block can be freed, the next thread adopts its heap, and the process can end.
        free(std::ptr::with_exposed_provenance_mut(block), 3000);
        let heaps = HEAP.stats().heaps;
        thread::spawn(exercise).join().unwrap();
        assert_eq!(
            HEAP.stats().heaps,
            heaps,
            "the main thread's heap was not reused"
        );
        say("the others went on\n");
    });
    // SAFETY: no frame of the standard library's start routine is below, which would stop the
    // unwinding, and the frames that are below may be unwound.
    unsafe { pthread_exit(std::ptr::null_mut()) }
}

/// Holds blocks in `depth` nested calls, the innermost of which panics.
fn falls(depth: usize, random: &mut Random) -> usize {
    let held: Vec<Held> = (0..5).map(|_| Held::random(random)).collect();
    assert!(depth > 0, "the bottom, with {} blocks", held.len());
    falls(depth - 1, random) + held.len()
}

fn panics_unwind() {
    panic::set_hook(Box::new(|_| ()));
    let mut random = Random::new(8);
    let mut fall = || {
        drop(panic::catch_unwind(panic::AssertUnwindSafe(|| falls(20, &mut random))).unwrap_err());
    };
    fall();
    let before = HEAP.stats().live_bytes;
    for _ in 0..20 {
        fall();
    }
    assert_eq!(HEAP.stats().live_bytes, before);
}

fn threads_panic() {
    panic::set_hook(Box::new(|_| ()));
    let fall = |seed| {
        drop(
            thread::spawn(move || falls(20, &mut Random::new(seed)))
                .join()
                .unwrap_err(),
        );
    };
    fall(1);
    settle();
    let before = HEAP.stats();
    for seed in 2..30 {
        fall(seed);
    }
    settle();
    let after = HEAP.stats();
    assert_eq!(
        (after.live_bytes, after.heaps),
        (before.live_bytes, before.heaps)
    );
}
