//! Jobs that together exceed a device: they sleep and wake in turns.

use serde_json::Value;

use super::processes::{Machine, Process, text, wait};
use super::{MIB, Meter, coordinator, steps_of};

const TOTAL: u64 = 36 * MIB;

/// Number of each job's blocks. With the memory between them, both need 1.6 times the total.
const BLOCKS: u64 = 22;

/// Returns a trace with blocks of about 1 MiB. Most of them stay from step to step, so that a
/// sleeping job has something to keep.
fn trace(steps: u32) -> String {
    let stay: Vec<u64> = (0..BLOCKS - 4).map(|id| MIB - 256 * id).collect();
    steps_of(&stay, &[MIB - 256; 4], steps)
}

/// Returns how often a job was ordered to sleep, and to wake.
fn turns(coordinator: &Process, job: &str) -> (usize, usize) {
    let said = coordinator.said();
    let told = |asleep: bool| {
        let is_it = |said: &&Value| said["what"] == "turn" && said["asleep"] == asleep;
        let is_of = |said: &&Value| said["job"] == job;
        said.iter().filter(is_it).filter(is_of).count()
    };
    (told(true), told(false))
}

#[test]
fn two_jobs_that_a_device_is_too_small_for_finish_by_turns_and_never_hold_more_than_it_has() {
    // The device is larger than the total, so only the turns enforce the total.
    let device_bytes = 4 * TOTAL;
    let machine = Machine::new(device_bytes);
    let meter = Meter::new(&machine.ledger(), device_bytes);
    let passes = ["--passes", "20", "--host", "none", "--priority", "1"];
    let file = machine.file("half.trace", &trace(12));
    let arguments = [&[file.as_str()][..], &passes].concat();
    let mut coordinator = coordinator(&machine, TOTAL, "--interval 0.01 --turns=0.02");
    let mut jobs = ["a", "b"].map(|name| machine.job(name, &arguments));
    let mut most = 0;
    wait("both to end", || {
        let used = meter.used_bytes();
        assert!(used <= TOTAL, "{used} bytes of {TOTAL}");
        most = used.max(most);
        !jobs.iter_mut().any(Process::is_running)
    });
    assert!(most > TOTAL / 2, "{most} bytes: the meter measures");
    let outcomes = jobs.each_mut().map(Process::end);
    wait("both to be gone", || {
        let said = coordinator.said();
        said.iter().filter(|said| said["what"] == "gone").count() == 2
    });
    coordinator.terminate();
    coordinator.end();
    for said in coordinator.said() {
        assert_ne!(said["what"], "problem", "{said}");
    }
    for job in ["a", "b"] {
        let (slept, woke) = turns(&coordinator, job);
        assert!(slept > 0 && woke > 0, "{job}: {slept} and {woke}");
    }
    let other = Machine::new(TOTAL);
    let rest = ["--driver", "stand-in"];
    let output = other.run(&[&["job"], &arguments[..], &rest].concat());
    let alone: Value = serde_json::from_slice(&output.stdout).unwrap();
    for outcome in outcomes {
        assert_eq!(outcome["digest"], alone["digest"]);
        assert_eq!(outcome["allocations"], alone["allocations"]);
        assert_eq!(
            (&outcome["wrong_bytes"], &outcome["on_host"]),
            (&Value::from(0), &Value::from(0))
        );
    }
}

#[test]
fn a_person_has_a_job_sleep_and_wake_and_the_table_says_so() {
    let machine = Machine::new(TOTAL);
    let file = machine.file("half.trace", &trace(12));
    let mut job = machine.job("a", &[&file, "--passes", "100000", "--limit", "32MiB"]);
    wait("it to be at work", || {
        machine.top("a")["mini_batch_micros"].as_u64() > Some(0)
    });
    machine.succeed(&["control", "sleep", "a"]);
    wait("its sleep", || machine.top("a")["sleep"] == "asleep");
    let top = machine.top("a");
    assert_eq!(
        (&top["target_asleep"], &top["alive"]),
        (&Value::from(true), &Value::from("yes"))
    );
    assert_eq!(top["gpus"][0]["device_held_bytes"], 0);
    // Between two passes there is nothing to copy.
    assert!(top["copied_bytes"].is_u64() && top["wake_bytes"].is_u64());
    let table = machine
        .run(&["top", "--once", &text(&machine.jobs())])
        .stdout;
    assert!(String::from_utf8(table).unwrap().contains("asleep"));
    machine.succeed(&["control", "wake", "a"]);
    wait("its wake", || machine.top("a")["sleep"] == "awake");
    // The sleeping job ends when it is told to, and has lost nothing.
    machine.succeed(&["control", "sleep", "a"]);
    wait("its sleep", || machine.top("a")["sleep"] == "asleep");
    job.terminate();
    let outcome = job.end();
    assert_eq!(outcome["wrong_bytes"], 0);
}
