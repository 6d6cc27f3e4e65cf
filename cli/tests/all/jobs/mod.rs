//! `larder job`, `coordinate`, `top` and `control` together: real processes that share the memory
//! of one device of the stand-in driver.
//!
//! Waits are for conditions, with a deadline that only a hang reaches. Nothing depends on speed.
mod processes;
mod restarts;
mod serve;
mod strangers;
mod turns;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_cuda::Context;
use larder_cuda::driver::{Choice, load};
use processes::{Machine, Process, text, wait};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The total for both jobs. Either job alone wants most of it.
const TOTAL: u64 = 64 * MIB;

/// Returns a trace with blocks that stay, and others that come and go in each of `steps` steps.
fn steps_of(stay: &[u64], come: &[u64], steps: u32) -> String {
    let mut text = "# alloc-trace v1: a <id> <bytes>\n".to_owned();
    for (id, bytes) in stay.iter().enumerate() {
        writeln!(text, "a {id} {bytes}").unwrap();
    }
    let mut next = stay.len();
    for step in 0..steps {
        writeln!(text, "s {step}").unwrap();
        let ids = next..next + come.len();
        for (id, bytes) in ids.clone().zip(come) {
            writeln!(text, "a {id} {bytes}").unwrap();
        }
        next = ids.end;
        for id in ids.rev() {
            writeln!(text, "f {id}").unwrap();
        }
    }
    writeln!(text, "s {steps}").unwrap();
    text
}

/// Returns a trace with four blocks that stay, and with `blocks` that come and go in each step.
fn trace(blocks: u64, bytes: u64, steps: u32) -> String {
    let come: Vec<u64> = (0..blocks).map(|block| bytes - 1000 * block).collect();
    steps_of(&[100_000, 100_001, 100_002, 100_003], &come, steps)
}

/// Returns the last figures that the coordinator printed for a job.
fn figures(coordinator: &Process, job: &str) -> Value {
    let said = coordinator.said().into_iter().rev();
    let mut states = said.filter(|said| said["what"] == "state" && said["job"] == job);
    states.next().unwrap_or_default()
}

fn limit(coordinator: &Process, job: &str) -> u64 {
    figures(coordinator, job)["limit_bytes"]
        .as_u64()
        .unwrap_or(0)
}

fn coordinator(machine: &Machine, total: u64, words: &str) -> Process {
    let (jobs, total) = (text(&machine.jobs()), total.to_string());
    let mut arguments = vec!["coordinate", "--total", &total, &jobs, "--json"];
    arguments.extend(["--step", "2MiB"]);
    arguments.extend(words.split(' '));
    machine.start("coordinator", &arguments)
}

fn coordinate(machine: &Machine) -> Process {
    coordinator(machine, TOTAL, "--interval 0.02 --calm 0.2")
}

/// Runs two jobs at once, of which `high` wants most of the memory at first and little later. Calls
/// `look` during all waits. Returns the outcomes of `low` and `high`.
fn two_jobs(machine: &Machine, mut look: impl FnMut()) -> (Value, Value) {
    let wide = machine.file("wide.trace", &trace(24, 2 * MIB, 12));
    let small = machine.file("small.trace", &trace(4, MIB / 2, 3000));
    let mut coordinator = coordinate(machine);
    let mut low = machine.job("low", &[&wide, "--priority", "1", "--passes", "100000"]);
    let mut until = |what: &str, mut is_so: Box<dyn FnMut() -> bool + '_>| {
        wait(what, || {
            look();
            is_so()
        });
    };
    until(
        "the job that is alone to get what it wants",
        Box::new(|| limit(&coordinator, "low") > TOTAL * 3 / 4),
    );
    // `high` starts suspended, so that its need lasts until it is met.
    machine.file("jobs/high.control.json", "{\"perfControl\": 0}");
    let arguments = [&wide, &small, "--priority", "9", "--passes", "3"];
    let mut high = machine.job("high", &arguments);
    until(
        "memory to move to the job of higher priority",
        Box::new(|| {
            limit(&coordinator, "high") > TOTAL * 3 / 4 && limit(&coordinator, "low") < TOTAL / 4
        }),
    );
    let before = machine.top("low")["age_ms"].clone();
    assert!(before.is_u64() && machine.top("low")["alive"] == "yes");
    machine.succeed(&["control", "resume", "high"]);
    until(
        "memory to move back, both being at work",
        Box::new(|| {
            assert!(high.is_running() && low.is_running());
            let wanted = figures(&coordinator, "high")["wanted_bytes"].as_u64();
            wanted.unwrap_or(u64::MAX) < TOTAL / 4
                && limit(&coordinator, "high") < TOTAL / 2
                && limit(&coordinator, "low") > TOTAL / 2
        }),
    );
    until("the end of `high`", Box::new(|| !high.is_running()));
    low.terminate();
    until("the end of `low`", Box::new(|| !low.is_running()));
    until(
        "both to be gone",
        Box::new(|| {
            let said = coordinator.said();
            said.iter().filter(|said| said["what"] == "gone").count() == 2
        }),
    );
    let outcomes = (low.end(), high.end());
    coordinator.terminate();
    coordinator.end();
    check_the_story(&coordinator);
    compare_with_each_alone(&outcomes, &[&wide, &small]);
    outcomes
}

/// Checks that the coordinator printed no problem and reported both jobs as gone.
fn check_the_story(coordinator: &Process) {
    let mut charges = std::collections::HashMap::new();
    for said in coordinator.said() {
        let job = said["job"].as_str().unwrap().to_owned();
        match said["what"].as_str().unwrap() {
            "state" => {
                charges.insert(job, said["charge_bytes"].as_u64().unwrap());
            }
            "gone" => {
                charges.remove(&job);
            }
            "problem" => panic!("{said}"),
            _ => {}
        }
    }
    assert!(charges.is_empty());
}

/// Checks that each job's results equal those of a run on a device of its own.
fn compare_with_each_alone(outcomes: &(Value, Value), traces: &[&str; 2]) {
    let alone = |traces: &[&str], passes: &str| {
        let other = Machine::new(1 << 30);
        let rest = ["--passes", passes, "--driver", "stand-in"];
        let output = other.run(&[&["job"], traces, &rest].concat());
        assert!(output.status.success(), "{output:?}");
        let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(outcome["on_host"], 0);
        outcome
    };
    let (low, high) = outcomes;
    let passes = low["passes"].to_string();
    for (shared, alone) in [
        (low, alone(&traces[..1], &passes)),
        (high, alone(traces, "3")),
    ] {
        assert_eq!(shared["digest"], alone["digest"]);
        assert_eq!(shared["allocations"], alone["allocations"]);
        assert_eq!(shared["wrong_bytes"], 0);
        assert!(shared["on_device"].as_u64().unwrap() > 0, "{shared}");
    }
    // `low` had to do without device memory for a while.
    assert!(low["on_host"].as_u64().unwrap() > 0, "{low}");
}

/// Measures the bytes of the shared device that all processes use together. Only one exists at a
/// time, because this process has one stand-in.
struct Meter {
    context: Context,
    _turn: MutexGuard<'static, ()>,
}

static METER: Mutex<()> = Mutex::new(());

impl Meter {
    fn new(ledger: &Path, device_bytes: u64) -> Self {
        let turn = METER.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = load(Choice::StandIn).unwrap();
        let stand_in = driver.stand_in().unwrap();
        stand_in.reset(1, device_bytes);
        stand_in.share(ledger).unwrap();
        Self {
            context: Context::new(0).unwrap(),
            _turn: turn,
        }
    }

    fn used_bytes(&self) -> u64 {
        let (free, total) = self.context.cudarc().mem_get_info().unwrap();
        (total - free) as u64
    }
}

#[test]
fn memory_moves_between_two_jobs_at_work_and_their_sum_never_exceeds_the_total() {
    // The device is larger than the total, so only the coordinator enforces the total.
    let device_bytes = 4 * TOTAL;
    let machine = Machine::new(device_bytes);
    let meter = Meter::new(&machine.ledger(), device_bytes);
    let over = AtomicBool::new(false);
    let mut max = 0;
    two_jobs(&machine, || {
        let used = meter.used_bytes();
        max = used.max(max);
        over.fetch_or(used > TOTAL, Ordering::Relaxed);
    });
    assert!(!over.into_inner(), "{max} bytes of {TOTAL}");
    assert!(max > TOTAL / 2, "{max} bytes: the meter measures");
}

#[test]
fn a_cache_is_lent_to_a_job_until_another_one_wants_the_memory_for_itself() {
    let device_bytes = 4 * TOTAL;
    let machine = Machine::new(device_bytes);
    let meter = Meter::new(&machine.ledger(), device_bytes);
    let small = machine.file("small.trace", &trace(2, MIB / 2, 3));
    let wide = machine.file("wide.trace", &trace(20, 2 * MIB, 12));
    let mut coordinator = coordinate(&machine);
    // The cache has the higher priority, but most of it is lent.
    let mut cache = machine.job(
        "cache",
        &[
            &small,
            "--priority",
            "9",
            "--passes",
            "1000000",
            "--cache",
            "60MiB",
            "--guaranteed",
            "8MiB",
        ],
    );
    let (mut max, mut is_over) = (0, false);
    let mut until = |what: &str, mut is_so: Box<dyn FnMut() -> bool + '_>| {
        wait(what, || {
            let used = meter.used_bytes();
            max = used.max(max);
            is_over |= used > TOTAL;
            is_so()
        });
    };
    let held = |job: &str| {
        figures(&coordinator, job)["held_bytes"]
            .as_u64()
            .unwrap_or(0)
    };
    until(
        "the cache to fill",
        Box::new(|| held("cache") > TOTAL * 3 / 4),
    );
    let mut work = machine.job("work", &[&wide, "--priority", "1", "--passes", "100000"]);
    until(
        "the cache's memory to serve the work",
        Box::new(|| held("work") > TOTAL / 2 && held("cache") < TOTAL / 2),
    );
    work.terminate();
    until("the end of the work", Box::new(|| !work.is_running()));
    until(
        "the cache to fill again",
        Box::new(|| held("cache") > TOTAL * 3 / 4),
    );
    cache.terminate();
    until("the end of the cache", Box::new(|| !cache.is_running()));
    coordinator.terminate();
    coordinator.end();
    assert!(!is_over, "{max} bytes of {TOTAL}");
    let (work, cache) = (work.end(), cache.end());
    assert_eq!(
        (&work["wrong_bytes"], &cache["wrong_bytes"]),
        (&0.into(), &0.into())
    );
    assert!(
        cache["cache_returned_bytes"].as_u64().unwrap() >= TOTAL / 4,
        "{cache}"
    );
}

#[test]
fn on_a_device_of_just_the_total_nobody_fails() {
    let machine = Machine::new(TOTAL);
    two_jobs(&machine, || ());
}

#[test]
fn a_killed_job_is_shown_as_dead_and_counts_until_it_is_forgotten() {
    let machine = Machine::new(TOTAL);
    let wide = machine.file("wide.trace", &trace(24, 2 * MIB, 12));
    let coordinator = coordinate(&machine);
    let mut job = machine.job("killed", &[&wide, "--passes", "100000"]);
    wait("the job's limit", || {
        limit(&coordinator, "killed") > TOTAL / 2
    });
    assert_eq!(machine.top("killed")["alive"], "yes");
    let jobs = text(&machine.jobs());
    let refused = machine.run(&["control", "forget", "killed", "--in", &jobs]);
    assert_eq!(refused.status.code(), Some(2));
    let again = machine.run(&["job", &wide, "--name", "killed", "--in", &jobs]);
    assert_eq!(again.status.code(), Some(2), "two jobs of one name");
    job.kill();
    assert_eq!(machine.top("killed")["alive"], "no");
    let gone = |said: &Value| said["what"] == "gone";
    let other = machine.job("other", &[&wide, "--passes", "100000"]);
    wait("the other to be counted", || {
        let said = coordinator.said();
        said.iter().any(|said| said["job"] == "other")
    });
    assert!(!coordinator.said().iter().any(gone));
    wait("the way out to be said", || {
        let is_said = |said: &Value| {
            said["problem"]
                .to_string()
                .contains("control forget killed")
        };
        coordinator.said().iter().any(is_said)
    });
    machine.succeed(&["control", "forget", "killed"]);
    wait("the dead one's memory to go to the other", || {
        limit(&coordinator, "other") > TOTAL / 2
    });
    assert!(coordinator.said().iter().any(gone));
    other.terminate();
}

#[test]
fn a_share_of_the_time_is_obeyed_and_a_paused_job_stands_still() {
    let machine = Machine::new(TOTAL);
    let wide = machine.file("wide.trace", &trace(4, MIB, 12));
    let mut job = machine.job("a", &[&wide, "--passes", "100000", "--limit", "32MiB"]);
    wait("its first status", || machine.top("a")["pid"].is_u64());
    machine.succeed(&["control", "set", "a", "--perf", "50", "--limit", "16MiB"]);
    wait("both to be in force", || {
        let top = machine.top("a");
        top["perf"] == 50 && top["gpus"][0]["limit_bytes"] == 16 * MIB
    });
    machine.succeed(&["control", "pause", "a"]);
    wait("the pause", || machine.top("a")["perf"] == 0);
    job.terminate();
    let outcome = job.end();
    assert_eq!(outcome["wrong_bytes"], 0);
    assert!(outcome["limit_changes"].as_u64().unwrap() <= 1);
    wait("its last word", || machine.top("a")["ended"] == true);
}

#[test]
fn a_limit_set_by_hand_is_said_not_to_last_while_a_coordinator_runs_and_lasts_without_one() {
    let machine = Machine::new(TOTAL);
    let wide = machine.file("wide.trace", &trace(24, 2 * MIB, 12));
    let mut coordinator = coordinate(&machine);
    let job = machine.job("a", &[&wide, "--passes", "100000"]);
    wait("the job's limit", || limit(&coordinator, "a") > TOTAL / 2);
    let jobs = text(&machine.jobs());
    let set = |words: [&str; 2]| {
        let output = machine.run(&[&["control", "set", "a", "--in", &jobs], &words[..]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = set(["--limit", "8MiB"]);
    let process = format!("process {}", coordinator.id());
    assert!(said.starts_with("a: ") && said.contains(&process), "{said}");
    assert!(said.contains("end the coordinator first"), "{said}");
    assert_eq!(set(["--perf", "90"]), "");
    wait("the coordinator's limit", || {
        machine.top("a")["gpus"][0]["target_limit_bytes"].as_u64() > Some(TOTAL / 2)
    });
    coordinator.terminate();
    coordinator.end();
    assert_eq!(set(["--limit", "8MiB"]), "");
    wait("the limit to be in force", || {
        machine.top("a")["gpus"][0]["limit_bytes"] == 8 * MIB
    });
    job.terminate();
}

#[test]
fn a_coordination_whose_output_nobody_reads_ends_with_words_and_a_table_is_just_cut() {
    let machine = Machine::new(TOTAL);
    let jobs = text(&machine.jobs());
    // Gives the coordinator something to print in its first round.
    machine.file("jobs/a.status.json", "{}");
    let total = ["coordinate", "--total", "1GiB", &jobs];
    let once = [&total[..], &["--once"]].concat();
    for (arguments, code, words) in [
        (&total[..], 1, "the coordination has ended"),
        (&once, 0, ""),
        (&["top", "--once", &jobs], 0, ""),
        (&["top", "--json", &jobs], 0, ""),
    ] {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let output = machine.command(arguments).stdout(write).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert_eq!(said.is_empty(), words.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn a_job_whose_status_cannot_be_written_says_so_once_and_goes_on() {
    let machine = Machine::new(TOTAL);
    let wide = machine.file("wide.trace", &trace(4, MIB, 12));
    let arguments = ["--passes", "100000", "--limit", "32MiB", "--in"];
    let (said, jobs) = (
        machine.jobs().with_file_name("job.error"),
        text(&machine.jobs()),
    );
    let mut command = machine.command(&["job", &wide, "--driver", "stand-in", "--name", "a"]);
    command.args(arguments).arg(&jobs);
    command.stderr(std::fs::File::create(&said).unwrap());
    let mut job = machine.start_command("a", command);
    let said = || std::fs::read_to_string(&said).unwrap();
    wait("it to be at work", || {
        machine.top("a")["mini_batch_micros"].as_u64() > Some(0)
    });
    assert_eq!(said(), "");
    std::fs::rename(&jobs, machine.jobs().with_file_name("moved")).unwrap();
    let line = "a.status.json: No such file or directory (os error 2); the job continues\n";
    wait("words about its status", || said().ends_with(line));
    assert!(job.is_running());
    job.terminate();
    assert_eq!(job.end()["wrong_bytes"], 0);
    let lines = said();
    assert_eq!(lines.matches(line).count(), 1, "{lines}");
    // A short job, whose folder never existed.
    let nowhere = format!("{jobs}/a.status.json");
    let rest = ["--driver", "stand-in", "--status", &nowhere];
    let output = machine.run(&[&["job", &wide][..], &rest].concat());
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stderr).unwrap();
    assert_eq!(lines.matches(line).count(), 1, "{lines}");
}
