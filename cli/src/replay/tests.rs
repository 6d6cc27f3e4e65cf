//! The replay loop with contenders that work correctly, refuse blocks or return wrong ones.

use std::path::Path;

use super::{
    CONTENDERS, Contender, ContenderBlock, ContenderSpec, Options, Outcome, ReplayFault, Violation,
};
use larder_trace::{Trace, read};

/// A contender that places blocks one after another. `cheat` selects its misbehaviour.
struct Bump {
    cheat: Cheat,
    next: u64,
    capacity: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Cheat {
    No,
    Overlaps,
    CountsTooLittle,
}

impl Contender for Bump {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        let address = self.next;
        let end = address
            .checked_add(bytes)
            .filter(|&end| end <= self.capacity)?;
        self.next = if self.cheat == Cheat::Overlaps {
            end - 1
        } else {
            end
        };
        Some(ContenderBlock { address, handle: 0 })
    }

    fn free(&mut self, _slot: ContenderBlock) {}

    fn reserved_bytes(&self) -> u64 {
        match self.cheat {
            Cheat::No => self.next,
            Cheat::Overlaps => self.capacity,
            Cheat::CountsTooLittle => self.next - 1,
        }
    }
}

fn bump(cheat: Cheat, device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(Bump {
        cheat,
        next: 0,
        capacity: device_bytes.unwrap_or(u64::MAX),
    })
}

const HONEST: ContenderSpec = ContenderSpec {
    name: "bump",
    about: "",
    build: |device| bump(Cheat::No, device),
};
const OVERLAPS: ContenderSpec = ContenderSpec {
    name: "overlaps",
    about: "",
    build: |device| bump(Cheat::Overlaps, device),
};
const COUNTS_TOO_LITTLE: ContenderSpec = ContenderSpec {
    name: "counts-too-little",
    about: "",
    build: |device| bump(Cheat::CountsTooLittle, device),
};

fn trace(text: &str) -> Trace {
    read(Path::new("t.trace"), text.as_bytes()).unwrap()
}

fn replay(
    spec: &ContenderSpec,
    trace: &Trace,
    device_bytes: Option<u64>,
) -> Result<Outcome, Violation> {
    super::replay(spec, trace, &Options::new(device_bytes))
}

#[test]
fn peaks_and_counts_are_those_of_the_trace() {
    let trace = trace("a 0 100\ns 0\na 1 50\nf 0\na 2 20\nf 1\ns 1\n");
    let outcome = replay(&HONEST, &trace, None).unwrap();
    assert!(outcome.completed);
    assert_eq!(outcome.allocations, 3);
    assert_eq!(outcome.peak_live_bytes, 150);
    assert_eq!(outcome.peak_reserved_bytes, 170);
    assert_eq!(outcome.reserved_over_live(), Some(170.0 / 150.0));
    assert!(outcome.ns_per_operation.unwrap() >= 0.0);
}

#[test]
fn a_refusal_stops_the_replay_and_keeps_what_was_measured() {
    let trace = trace("a 0 100\na 1 50\na 2 1\na 3 1\n");
    let outcome = replay(&HONEST, &trace, Some(150)).unwrap();
    assert!(!outcome.completed);
    assert_eq!(outcome.stopped_at_event, Some(3));
    assert_eq!((outcome.allocations, outcome.peak_live_bytes), (2, 150));
    let nothing = replay(&HONEST, &trace, Some(1)).unwrap();
    assert_eq!(
        (nothing.reserved_over_live(), nothing.ns_per_operation),
        (None, None)
    );
}

#[test]
fn overlapping_blocks_are_an_error_that_names_allocator_and_event() {
    let violation = replay(&OVERLAPS, &trace("s 0\na 0 100\na 1 50\ns 1\n"), None).unwrap_err();
    assert_eq!((violation.allocator, violation.event), ("overlaps", 3));
    assert!(matches!(violation.fault, ReplayFault::Overlap { .. }));
    let message = violation.to_string();
    assert!(
        message.starts_with("overlaps broke its contract at event 3 of t: "),
        "{message}"
    );
}

#[test]
fn an_allocator_that_counts_less_reserved_than_live_is_an_error() {
    let violation = replay(&COUNTS_TOO_LITTLE, &trace("a 0 100\n"), None).unwrap_err();
    assert_eq!(
        violation.fault,
        ReplayFault::ReservedBelowLive {
            reserved_bytes: 99,
            live_bytes: 100
        }
    );
}

#[test]
fn names_in_the_registry_are_unique() {
    for (index, spec) in CONTENDERS.iter().enumerate() {
        assert!(
            CONTENDERS[..index]
                .iter()
                .all(|other| other.name != spec.name),
            "{}",
            spec.name
        );
    }
}
