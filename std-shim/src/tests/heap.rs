//! Random programs on a heap whose system refuses: the answer is a block or null, and nothing is
//! lost.

use std::mem;
use std::sync::Mutex;
use std::thread;

use super::drive::World;
use super::faulty::{Call, Plan};
use super::verbs::{Held, Random, Verbs, some_layout};
use crate::local::Local;

/// How many operations a program of the exhaustive tests has.
const SHORT: usize = 260;
const SEED: u64 = 1;

/// Runs a program under a plan; how many calls it made of a kind, and how often it got null.
fn program(plan: Plan, seed: u64, operations: usize) -> ([usize; 4], usize) {
    let mut world = World::new(plan, seed, 3);
    world.run(operations);
    let counts = (Call::ALL.map(|call| world.os.calls(call)), world.nulls);
    world.end();
    counts
}

/// Refuses each call of a kind in turn, alone and with all that follow.
fn refuse_each(call: Call) {
    let (calls, nulls) = program(Plan::Willing, SEED, SHORT);
    assert_eq!(nulls, 0);
    let count = calls[call as usize];
    assert!(
        count > 4,
        "the program makes too few calls to tell: {calls:?}"
    );
    eprintln!("{calls:?}");
    for n in 1..=count {
        program(Plan::Once(call, n), SEED, SHORT);
        program(Plan::From(call, n), SEED, SHORT);
    }
}

#[test]
fn over_a_willing_system_every_request_is_served_and_nothing_is_lost() {
    for seed in 1..=5 {
        let (calls, nulls) = program(Plan::Willing, seed, 3000);
        assert_eq!(nulls, 0, "seed {seed}");
        assert!(
            calls.iter().all(|count| *count > 0),
            "seed {seed}: {calls:?}"
        );
    }
}

#[test]
fn any_refused_reserve_is_survived() {
    refuse_each(Call::Reserve);
}

#[test]
fn any_refused_commit_is_survived() {
    refuse_each(Call::Commit);
}

#[test]
fn any_refused_decommit_is_survived() {
    refuse_each(Call::Decommit);
}

#[test]
fn any_refused_discard_is_survived() {
    refuse_each(Call::Discard);
}

#[test]
fn a_system_that_refuses_everything_from_some_call_on_is_survived() {
    let (calls, _) = program(Plan::Willing, SEED, SHORT);
    let mut nulls = 0;
    for n in 1..=calls.iter().sum() {
        nulls += program(Plan::AllFrom(n), SEED, SHORT).1;
    }
    assert!(nulls > 0, "no plan had an effect");
}

#[test]
fn random_refusals_are_survived() {
    let mut nulls = 0;
    for seed in 1..=12 {
        let one_in = [2, 3, 5, 20][seed as usize % 4];
        nulls += program(Plan::Random { seed, one_in }, seed, 1000).1;
    }
    assert!(nulls > 0, "no plan had an effect");
}

#[test]
fn limits_on_addresses_and_on_memory_give_null_and_are_survived() {
    for seed in 1..=4 {
        for (reserved, committed) in [
            (11 << 20, usize::MAX),
            (usize::MAX, 7 << 20),
            (9 << 20, 5 << 20),
        ] {
            let mut world = World::new(Plan::Willing, seed, 2);
            world.os.limit(reserved, committed);
            world.run(1200);
            assert!(world.nulls > 0, "the limit had no effect");
            assert!(world.os.reserved_bytes() <= reserved);
            assert!(world.os.committed_bytes() <= committed);
            world.end();
        }
    }
}

/// What was sent to a thread and not yet received.
type Inbox = Mutex<Vec<Held>>;

fn take(inbox: &Inbox) -> Vec<Held> {
    mem::take(&mut inbox.lock().unwrap())
}

/// One thread of a program with several: blocks go round, so most are freed by others.
fn shuffle(verbs: Verbs, seed: u64, next: &Inbox, mine: &Inbox) {
    let mut random = Random(seed * 2 + 1);
    let mut local = Local::new();
    for _ in 0..1500 {
        for held in take(mine) {
            held.check(held.layout.size());
            verbs.free(&mut local, held.start, held.layout);
        }
        let layout = some_layout(&mut random);
        let start = verbs.alloc(&mut local, layout, false);
        if !start.is_null() {
            let fill = random.next(255) as u8 + 1;
            next.lock().unwrap().push(Held::new(start, layout, fill));
        }
        match random.next(300) {
            0 => drop(verbs.process.trim()),
            1 => {
                local.end(verbs.process);
                local = Local::new();
            }
            _ => {}
        }
    }
    local.end(verbs.process);
}

#[test]
fn several_threads_over_a_system_that_refuses_at_random_lose_nothing() {
    for (seed, plan) in [(1, Plan::Willing), (2, Plan::Random { seed: 2, one_in: 4 })] {
        let world = World::new(plan, seed, 1);
        let verbs = world.verbs();
        let inboxes: [Inbox; 3] = Default::default();
        thread::scope(|scope| {
            for number in 0..3 {
                let (mine, next) = (&inboxes[number], &inboxes[(number + 1) % 3]);
                scope.spawn(move || shuffle(verbs, seed * 10 + number as u64, next, mine));
            }
        });
        let mut local = Local::new();
        for held in inboxes.iter().flat_map(take) {
            held.check(held.layout.size());
            verbs.free(&mut local, held.start, held.layout);
        }
        local.end(verbs.process);
        world.end();
    }
}
