//! Tests of what the example claims, on any driver.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_cuda::Context;
use larder_cuda::driver::{Driver, load_from_env};

use crate::cache::{BLOCK_BYTES, HALF_BYTES, TOTAL_BYTES};
use crate::day::{self, Request, Traffic};
use crate::server::{ACTIVATION_BYTES, MAX_BATCH};
use crate::{Kind, serve};

/// Loads the driver for a test that runs alone.
fn alone() -> (&'static Driver, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (load_from_env().unwrap(), turn)
}

/// A part of a day.
fn some(traffic: Traffic, seed: u64, steps: u32) -> Vec<Request> {
    let requests = day::requests(traffic, 1.0, seed).into_iter();
    requests
        .take_while(|request| request.arrival < steps)
        .collect()
}

#[test]
fn half_of_the_memory_is_whole_blocks_and_leaves_room_for_activations() {
    assert_eq!(HALF_BYTES % BLOCK_BYTES as u64, 0);
    let activations = (MAX_BATCH * ACTIVATION_BYTES) as u64;
    assert!(2 * HALF_BYTES + activations <= TOTAL_BYTES);
}

#[test]
fn a_day_is_the_same_each_time_and_has_a_long_tail() {
    for traffic in Traffic::ALL {
        let requests = day::requests(traffic, 1.0, 3);
        assert_eq!(requests, day::requests(traffic, 1.0, 3));
        assert_ne!(requests, day::requests(traffic, 1.0, 4));
        assert!(
            requests
                .iter()
                .enumerate()
                .all(|(id, request)| request.id == id)
        );
        let mut lengths: Vec<usize> = requests.iter().map(|request| request.output).collect();
        lengths.sort_unstable();
        let sum: usize = lengths.iter().sum();
        let longest: usize = lengths[lengths.len() * 9 / 10..].iter().sum();
        assert!(3 * longest > sum, "a tenth has a third of the tokens");
    }
}

#[test]
fn no_block_is_in_two_tables_each_request_ends_and_every_block_is_freed() {
    let (driver, _turn) = alone();
    for kind in Kind::ALL {
        let context = Context::new(0).unwrap();
        let requests = some(Traffic::Opposed, 11, 300);
        let server = kind.server(&context).unwrap();
        // The run checks the bytes of each block.
        let report = server.run(&requests, |server| server.check()).unwrap();
        assert!(report.outcomes.iter().all(Option::is_some), "{kind:?}");
        let ends = report.served + report.refused;
        assert_eq!(ends, requests.len() as u64, "{kind:?}");
        assert!(
            report.preempted + report.refused > 0,
            "{kind:?}: memory is short"
        );
        assert!(report.peak_bytes <= TOTAL_BYTES, "{kind:?}");
        if let Some(control) = driver.stand_in() {
            assert_eq!(control.findings(), Vec::<String>::new(), "{kind:?}");
            let left = control.alive().into_iter();
            let left: Vec<_> = left.filter(|alive| alive.kind != "context").collect();
            assert!(left.is_empty(), "{kind:?}: {left:?}");
        }
    }
}

#[test]
fn lent_memory_serves_whatever_fixed_halves_serve_at_the_same_step_or_before() {
    let (_driver, _turn) = alone();
    let context = Context::new(0).unwrap();
    for traffic in Traffic::ALL {
        for seed in 100..104 {
            let requests = some(traffic, seed, 300);
            let days = serve(&context, &requests).unwrap();
            let [lent, split, ..] = &days[..] else {
                unreachable!()
            };
            assert_eq!((lent.lost, lent.later), (0, 0), "{traffic:?} {seed}");
            assert!(lent.served >= split.served && lent.tokens >= split.tokens);
        }
    }
}

#[test]
fn a_model_alone_uses_what_the_other_lends_and_is_refused_less() {
    let (_driver, _turn) = alone();
    let context = Context::new(0).unwrap();
    let mut requests = some(Traffic::Opposed, 5, 300);
    requests.retain(|request| request.model == 0);
    for (id, request) in requests.iter_mut().enumerate() {
        request.id = id;
    }
    let days = serve(&context, &requests).unwrap();
    assert!(
        days[1].refused > 0 && days[0].refused * 4 < days[1].refused,
        "{} {}",
        days[0].refused,
        days[1].refused
    );
    assert!(days[0].peak_bytes > HALF_BYTES + HALF_BYTES / 2);
}

#[test]
fn results_are_the_same_in_any_schedule_of_the_device() {
    let (driver, _turn) = alone();
    let Some(control) = driver.stand_in() else {
        return;
    };
    let requests = some(Traffic::Bursts, 2, 80);
    let ends = |seed: Option<u64>| {
        if let Some(seed) = seed {
            control.schedule_deferred(seed);
        }
        let context = Context::new(0).unwrap();
        let days = serve(&context, &requests).unwrap().into_iter();
        let outcomes: Vec<_> = days.take(2).map(|day| day.outcomes).collect();
        control.schedule_eagerly();
        assert_eq!(control.findings(), Vec::<String>::new(), "{seed:?}");
        outcomes
    };
    let eager = ends(None);
    for seed in 0..3 {
        assert_eq!(ends(Some(seed)), eager, "seed {seed}");
    }
}
