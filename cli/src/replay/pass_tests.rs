//! The events that each pass plays, and replays with an invented contender. The tests of the
//! command line have all other cases.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use super::script::ReplayScript;
use super::tape::{Played, TapeAction};
use super::{
    Contender, ContenderBlock, ContenderSpec, DriverCalls, Options, Repeat, ReplayFault, replay,
};
use larder_trace::{Trace, read};

fn trace(text: &str) -> Trace {
    read(Path::new("t.trace"), text.as_bytes()).unwrap()
}

fn passes(passes: u32, repeat: Repeat, device_bytes: Option<u64>) -> Options {
    Options {
        passes: NonZeroU32::new(passes).unwrap(),
        repeat,
        ..Options::new(device_bytes)
    }
}

/// Returns the events of a pass in the form of a trace, with their numbers.
fn played(text: &str, repeat: Repeat, pass: u32) -> String {
    let mut script = ReplayScript::of(&trace(text), NonZeroU32::new(3).unwrap(), repeat);
    let mut live = vec![None; script.places()];
    let mut words = Vec::new();
    for number in 1..=pass {
        words.clear();
        let mut batches = script.tape(number).batches().unwrap();
        for Played { number, act } in batches.next().unwrap() {
            words.push(match *act {
                TapeAction::Alloc { id, place, .. } => {
                    assert_eq!(live[place].replace(id), None, "{text}");
                    format!("{number}:a{id}")
                }
                TapeAction::Free { place } => format!("{number}:f{}", live[place].take().unwrap()),
                TapeAction::Step { .. } => format!("{number}:s"),
                TapeAction::StartOver => format!("{number}:o"),
            });
        }
    }
    words.join(" ")
}

/// A trace in which block 0 is allocated before the step, block 1 is freed inside it, and block 2
/// is never freed.
const LOOP: &str = "a 0 100\ns 0\na 1 50\nf 0\na 2 20\nf 1\ns 1\n";

#[test]
fn a_step_frees_once_what_is_older_and_replaces_what_it_left() {
    let first = "1:a0 2:s 3:a1 4:f0 5:a2 6:f1 7:s";
    assert_eq!(played(LOOP, Repeat::LastStep, 1), first);
    let again = "3:a1 5:f2 5:a2 6:f1 7:s";
    assert_eq!(played(LOOP, Repeat::LastStep, 2), again);
    assert_eq!(played(LOOP, Repeat::LastStep, 3), again);
}

#[test]
fn only_the_last_step_comes_again() {
    let text = "s 0\na 0 1\ns 1\na 1 1\nf 1\ns 2\n";
    assert_eq!(played(text, Repeat::LastStep, 2), "4:a1 5:f1 6:s");
}

#[test]
fn what_stands_between_steps_and_behind_the_last_does_not_come_again() {
    // Block 1 is freed in the step, block 2 after it, and block 3 never. Block 4 is allocated after
    // the step.
    let text =
        "a 0 1\ns 0\na 1 1\na 2 1\na 3 1\nf 1\ns 1\n# between steps\na 4 1\nf 2\nf 0\nf 4\ns 2\n";
    let again = "3:a1 4:a2 5:f3 5:a3 6:f1 7:s 9:f2";
    assert_eq!(played(text, Repeat::LastStep, 2), again);
    assert_eq!(played(text, Repeat::LastStep, 3), again);
    let text = "s 0\na 0 1\nf 0\ns 1\n# between steps\na 1 1\nf 1\ns 2\na 2 1\nf 2\ns 3\n";
    assert_eq!(played(text, Repeat::LastStep, 2), "8:a2 9:f2 10:s");
    // The whole trace is one step if it has no step marks.
    let text = "s 0\n# between steps\na 0 1\nf 0\ns 1\n";
    assert_eq!(played(text, Repeat::LastStep, 2), "1:s 2:a0 3:f0 4:s");
}

#[test]
fn a_trace_with_less_than_two_marks_is_one_step() {
    for text in ["a 0 1\na 1 1\nf 1\n", "a 0 1\na 1 1\nf 1\ns 0\n"] {
        let again = played(text, Repeat::LastStep, 2);
        assert!(again.starts_with("1:f0 1:a0 2:a1 3:f1"), "{again}");
    }
}

#[test]
fn the_whole_trace_begins_again_with_nothing_live() {
    let again = "1:f2 1:o 1:a0 2:s 3:a1 4:f0 5:a2 6:f1 7:s";
    assert_eq!(played(LOOP, Repeat::Trace, 2), again);
}

/// Serves blocks after the first step mark, on some small devices and all large ones, but on none
/// between. Calls its driver ten times in each step.
struct Fickle {
    fits: bool,
    live: u64,
    judged: bool,
    steps: u64,
}

impl Contender for Fickle {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        self.live += bytes;
        (self.fits && self.steps > 0).then_some(ContenderBlock {
            address: self.live,
            handle: 0,
        })
    }

    fn free(&mut self, _slot: ContenderBlock) {}

    fn reserved_bytes(&self) -> u64 {
        self.live
    }

    fn max_reserved_bytes(&self) -> Option<u64> {
        Some(7777)
    }

    fn driver_calls(&self) -> Option<DriverCalls> {
        Some(DriverCalls {
            unmap: 10 * self.steps,
            ..DriverCalls::default()
        })
    }

    /// Returns an hour for each live byte.
    fn driver_time(&self) -> Duration {
        Duration::from_secs(3600 * self.live)
    }

    fn end_step(&mut self) {
        self.steps += 1;
    }

    fn judge(&mut self) {
        self.judged = true;
    }

    fn broken_rule(&self) -> Option<String> {
        (self.judged && self.steps == 3).then(|| "three steps".to_owned())
    }
}

fn fickle(min: u64, device_bytes: Option<u64>) -> Box<dyn Contender> {
    let fits = match device_bytes {
        Some(bytes) => (min..min + 10).contains(&bytes) || bytes >= 10_310,
        None => true,
    };
    Box::new(Fickle {
        fits,
        live: 0,
        judged: false,
        steps: 0,
    })
}

const FICKLE: ContenderSpec = ContenderSpec {
    name: "fickle",
    about: "",
    build: |device| fickle(10_100, device),
};
const NEVER: ContenderSpec = ContenderSpec {
    name: "never",
    about: "",
    build: |device| fickle(20_000, device.map(|bytes| bytes.min(10_300))),
};
const LATE: ContenderSpec = ContenderSpec {
    name: "late",
    about: "",
    build: |device| fickle(10_000, device.map(|bytes| bytes - 1_000)),
};
const EXACT: ContenderSpec = ContenderSpec {
    name: "exact",
    about: "",
    build: |device| fickle(10_000, device),
};

#[test]
fn the_smallest_device_is_found_below_larger_ones_that_do_not_do() {
    let options = Options {
        smallest_device: true,
        ..Options::new(None)
    };
    let step = trace("s 0\na 0 10000\ns 1\n");
    let smallest = |spec| replay(spec, &step, &options).unwrap().smallest_device;
    let found = smallest(&FICKLE).unwrap();
    assert_eq!((found.bytes, found.calls), (10_100, 20));
    assert!((found.over_live - 1.01).abs() < 1e-12);
    assert_eq!(smallest(&EXACT).unwrap().bytes, 10_000);
    assert_eq!(smallest(&LATE).unwrap().bytes, 11_000);
    assert_eq!(smallest(&NEVER), None);
    let unasked = replay(&FICKLE, &step, &Options::new(None)).unwrap();
    assert_eq!(unasked.smallest_device, None);
}

#[test]
fn the_maximum_held_inside_a_call_counts_as_reserved() {
    let outcome = replay(&FICKLE, &trace("s 0\na 0 10\ns 1\n"), &Options::new(None)).unwrap();
    assert_eq!(outcome.peak_reserved_bytes, 7777);
}

#[test]
fn what_a_simulated_driver_needs_is_in_no_time() {
    let blocks = trace("s 0\na 0 10\na 1 10\ns 1\n");
    let outcome = replay(&FICKLE, &blocks, &Options::new(None)).unwrap();
    assert_eq!(outcome.ns_per_operation, Some(0.0));
    // The end of the step makes no driver call.
    assert!(outcome.worst_ns.unwrap() < 1_000_000_000);
}

#[test]
fn a_broken_rule_is_an_error_that_names_pass_and_event() {
    let step = trace("s 0\na 0 10\ns 1\n");
    let violation = replay(&FICKLE, &step, &passes(2, Repeat::LastStep, None)).unwrap_err();
    assert_eq!((violation.event, violation.pass), (3, 2));
    assert_eq!(
        violation.fault,
        ReplayFault::BrokenRule("three steps".to_owned())
    );
    assert_eq!(
        violation.to_string(),
        "fickle broke its contract at event 3 of t, pass 2: \
         against the rules of its device: three steps"
    );
}
