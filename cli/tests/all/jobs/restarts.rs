//! Jobs and coordinators are killed and restarted under load, and files vanish. The device is
//! polled all the time, and its memory in use never exceeds the total.

use std::fs;
use std::process::Stdio;

use larder_model::Random;

use super::processes::{Machine, Process, text, wait};
use super::{MIB, Meter, TOTAL, coordinate, limit, trace};

fn samples() -> u64 {
    let is_long = std::env::var_os("LARDER_ROUNDS").is_some_and(|word| word == "all");
    if is_long { 1_000_000 } else { 40_000 }
}

/// Starts a job that needs most of the total and runs longer than the test.
fn start(machine: &Machine, name: &str) -> Process {
    let wide = machine.file("wide.trace", &trace(24, 2 * MIB, 12));
    machine.job(name, &[&wide, "--passes", "1000000"])
}

#[test]
fn restarts_of_jobs_and_coordinators_never_exceed_the_total() {
    let device_bytes = 4 * TOTAL;
    let machine = Machine::new(device_bytes);
    let meter = Meter::new(&machine.ledger(), device_bytes);
    let mut random = Random::new(44);
    let names = ["a", "b"];
    let mut jobs = names.map(|name| start(&machine, name));
    let mut coordinator = coordinate(&machine);
    let (mut max, mut taken, mut restarts) = (0, 0, 0);
    while taken < samples() {
        // Gives memory time to move, measured in polls and not by the clock.
        for _ in 0..1 + random.below(2_000) {
            let used = meter.used_bytes();
            assert!(
                used <= TOTAL,
                "{used} bytes of {TOTAL} after {restarts} restarts"
            );
            (max, taken) = (used.max(max), taken + 1);
        }
        let which = random.index(2);
        match random.below(8) {
            0..=2 => {
                jobs[which].kill();
                jobs[which] = start(&machine, names[which]);
                restarts += 1;
            }
            3 | 4 => {
                coordinator.kill();
                coordinator = coordinate(&machine);
                restarts += 1;
            }
            5 => {
                coordinator.kill();
                jobs[which].kill();
                jobs[which] = start(&machine, names[which]);
                coordinator = coordinate(&machine);
                restarts += 2;
            }
            _ => {
                let status = machine.jobs().join(format!("{}.status.json", names[which]));
                let _ = fs::remove_file(status);
            }
        }
    }
    // Both jobs still run and get memory.
    wait("memory for both", || {
        let used = meter.used_bytes();
        assert!(used <= TOTAL, "{used} bytes of {TOTAL}");
        names
            .iter()
            .all(|name| limit(&coordinator, name) >= TOTAL / 4)
    });
    assert!(
        max > TOTAL / 2 && restarts > 10,
        "{max} bytes, {restarts} restarts"
    );
    drop(coordinator);
}

#[test]
fn two_jobs_of_one_file_and_two_coordinators_of_one_folder_exclude_each_other() {
    let machine = Machine::new(TOTAL);
    let wide = machine.file("wide.trace", &trace(4, MIB, 12));
    let mut first = machine.job("a", &[&wide, "--passes", "1000000"]);
    wait("its first status", || machine.top("a")["pid"].is_u64());
    let [control, status, other] = ["a.control.json", "a.status.json", "b.status.json"]
        .map(|name| text(&machine.jobs().join(name)));
    let link = machine.jobs().join("../by-link");
    std::os::unix::fs::symlink(machine.jobs(), &link).unwrap();
    let linked = text(&link.join("a.control.json"));
    for files in [
        ["--control", &control, "--status", &other],
        ["--control", &linked, "--status", &other],
        ["--control", &other, "--status", &status],
    ] {
        let output = machine.run(&[&["job", &wide, "--driver", "stand-in"][..], &files].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{files:?}: {said}");
        assert!(said.contains("has it, or a child of it"), "{said}");
    }
    assert!(first.is_running());
    let coordinator = coordinate(&machine);
    wait("it to begin", || !coordinator.said().is_empty());
    for folder in [text(&machine.jobs()), text(&link)] {
        let output = machine
            .command(&["coordinate", "--total", "1GiB", &folder])
            .stdout(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("have a coordinator"), "{said}");
    }
    first.terminate();
}
