//! Faults that are not misuse of a block, and handlers of the program and of Rust's runtime.

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::ptr;
use std::sync::Barrier;
use std::thread;

use crate::run;

#[expect(unconditional_recursion, reason = "the stack must overflow")]
fn overflows(depth: u64) -> u64 {
    let frame = black_box([depth; 100]);
    frame[0] + overflows(depth + 1)
}

fn touches_freed_block() {
    let layout = Layout::new::<[u64; 10]>();
    // SAFETY: the layout is not empty; the access must fault.
    unsafe {
        let block = black_box(alloc(layout));
        dealloc(block, layout);
        block.write_volatile(1);
    }
}

extern "C" fn own_handler(_: libc::c_int) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(7) };
}

pub(crate) fn task(name: &str) {
    match name {
        "overflow" => assert_ne!(overflows(0), 0),
        "overflow-thread" => {
            thread::spawn(|| overflows(0)).join().unwrap();
        }
        // SAFETY: the access must fault.
        "null" => unsafe { ptr::without_provenance_mut::<u8>(8).write_volatile(1) },
        "own-handler" => {
            drop(black_box(vec![0_u8; 100]));
            // SAFETY: a function of the program.
            unsafe { libc::signal(libc::SIGSEGV, own_handler as *const () as usize) };
            drop(black_box(vec![0_u8; 100]));
            touches_freed_block();
        }
        "400-live" => {
            let live: Vec<_> = (0..400).map(|_| Box::new([1_u8; 101])).collect();
            touches_freed_block();
            drop(black_box(live));
        }
        "too-many-live" => {
            let live: Vec<_> = (0..3000).map(|_| Box::new([1_u8; 101])).collect();
            drop(black_box(live));
        }
        "threads" => {
            let (count, at_once) = (4, Barrier::new(4));
            thread::scope(|scope| {
                for _ in 0..count {
                    scope.spawn(|| {
                        at_once.wait();
                        touches_freed_block();
                    });
                }
            });
        }
        _ => panic!("{name}"),
    }
    println!("went on");
}

pub(crate) fn check_all() {
    for name in ["overflow", "overflow-thread"] {
        for one_in in [1, 10, 1000] {
            let end = run(one_in, &[name]);
            end.assert_ended_by(libc::SIGABRT, name);
            let report = end.report;
            assert!(report.contains("has overflowed its stack"), "{report}");
        }
    }
    let end = run(1, &["null"]);
    end.assert_ended_by(libc::SIGSEGV, "null");
    assert_eq!(end.report, "");
    // A handler that the program installs later stays.
    let end = run(1, &["own-handler"]);
    assert_eq!((end.status.code(), &*end.report), (Some(7), ""));
    let end = run(1, &["400-live"]);
    end.assert_ended_by(libc::SIGSEGV, "400-live");
    assert!(
        end.report.starts_with("larder: read or wrote"),
        "{}",
        end.report
    );
    let end = run(1, &["too-many-live"]);
    let words = "larder: all 1024 guard pages are in use: further blocks have none\n";
    assert_eq!((&*end.said, &*end.report), ("went on\n", words));
    for _ in 0..5 {
        let end = run(1, &["threads"]);
        end.assert_ended_by(libc::SIGSEGV, "threads");
        let first = "larder: read or wrote a block that was freed: 0x";
        assert_eq!(end.report.matches(first).count(), 1, "{}", end.report);
    }
}
