//! Tests on files of jobs that the tests write themselves: they are found and shown, jobs get
//! orders, and memory is divided.

mod coordinate;
mod files;
mod screen;
mod trust;

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use larder_control::{BusId, ControlFile, Life, PerfControl, SleepState, StatusFile};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;
use tempfile::TempDir;

use crate::alive::Liveness;
use crate::arguments::{parse_limit, show_bytes, show_micros};
use crate::coordinate::{Coordination, CoordinationEvent, CoordinationSettings};
use crate::files::{FilesError, JobPaths, Twins, find, find_named};
use crate::order::{ControlChange, OrderError};
use crate::top::screen::{KeyAction, Screen, look, send};
use crate::top::table::{HEADINGS, table};
use crate::view::{JobView, unix_ms};
use crate::visible::json;

const GPU: &str = "01:00.0";
const MIB: u64 = 1 << 20;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A job's current status, as the job would write it.
#[derive(Clone)]
struct Status {
    pid: u32,
    life: Option<Life>,
    gpu: &'static str,
    version: Option<u64>,
    limit: u64,
    held: u64,
    wanted: u64,
    guaranteed: Option<u64>,
    priority: i64,
    ended: bool,
}

impl Status {
    fn new(priority: i64, wanted: u64) -> Self {
        Self {
            pid: std::process::id(),
            life: None,
            gpu: GPU,
            version: None,
            limit: 0,
            held: 0,
            wanted,
            guaranteed: None,
            priority,
            ended: false,
        }
    }

    fn write(&self, job: &JobPaths) {
        let text = json!({
            "gpuUsageInfo": { self.gpu: {
                "deviceMemUsedMax": self.held, "deviceMemUsedMin": self.held,
                "deviceMemPoolSize": self.held, "deviceMemStable": self.held,
                "hostMemUsedMax": 0, "hostMemUsedMin": 0, "hostMemPoolSize": 0,
                "swapReason": "OOM", "deviceMemUsedNvidia": -1 } },
            "miniBatchDuration": 2500, "Durations": null,
            "larder": { "pid": self.pid, "life": self.life, "name": job.name, "limitBytes": self.limit,
                "heldBytes": self.held, "perfControl": 100, "priority": self.priority,
                "controlVersion": self.version, "ended": self.ended,
                "writtenAtUnixMs": unix_ms(SystemTime::now()),
                "gpus": { self.gpu: { "limitBytes": self.limit, "heldBytes": self.held,
                    "deferredBytes": self.held.saturating_sub(self.limit),
                    "wantedBytes": self.wanted, "guaranteedBytes": self.guaranteed } } },
        });
        let text = text.to_string();
        StatusFile::parse(&text).unwrap();
        fs::write(&job.status, text).unwrap();
    }

    /// Returns the status of the job after it has started again, as another process.
    fn again(&self, process: &Child) -> Self {
        Self {
            pid: process.id(),
            life: Life::of(process.id()),
            version: None,
            limit: 0,
            held: 0,
            ..self.clone()
        }
    }

    /// Obeys the control file.
    fn obey(&mut self, job: &JobPaths) {
        if let Ok(text) = fs::read(&job.control) {
            let file = ControlFile::parse(text).unwrap().file;
            if file.is_for(self.life) {
                self.version = file.control_version;
                self.limit = file.gpus[&self.gpu.parse().unwrap()]
                    .max_device_mem
                    .unwrap();
            }
        }
        self.held = self.wanted.min(self.limit);
        self.write(job);
    }
}

/// Starts a process that lives until it is killed, as `user` or as this process's user.
fn process(user: Option<u32>) -> io::Result<Child> {
    let mut sleep = Command::new("sleep");
    // Pipes that it keeps open must not delay the end of a failed test.
    sleep
        .arg("1000")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(user) = user {
        std::os::unix::process::CommandExt::uid(&mut sleep, user);
    }
    sleep.spawn()
}

fn kill(mut process: Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

fn gpu() -> BusId {
    GPU.parse().unwrap()
}

fn settings(total_bytes: u64) -> CoordinationSettings {
    CoordinationSettings {
        total_bytes,
        step_bytes: MIB,
        calm: Duration::from_secs(1),
        floor_bytes: 0,
        perf_beside: PerfControl::FULL,
        gpu: None,
        turn: None,
    }
}

/// Jobs in a folder that answer through their files, and a coordination of 100 MiB for them.
struct World {
    folder: TempDir,
    coordination: Coordination,
    jobs: Vec<(JobPaths, Status)>,
    time: u64,
}

impl World {
    fn new(jobs: &[(&str, Status)]) -> Self {
        let mut world = Self {
            folder: folder(),
            coordination: Coordination::new(settings(100 * MIB)),
            jobs: Vec::new(),
            time: 0,
        };
        for (name, status) in jobs {
            world.join(name, status.clone());
        }
        world
    }

    fn paths(&self, name: &str) -> JobPaths {
        JobPaths::ours(self.folder.path(), name)
    }

    /// Adds a job that answers.
    fn join(&mut self, name: &str, status: Status) {
        let files = self.paths(name);
        status.write(&files);
        self.jobs.push((files, status));
    }

    /// Makes a job want this many MiB from now on.
    fn want(&mut self, index: usize, mebibytes: u64) {
        let (files, status) = &mut self.jobs[index];
        status.wanted = mebibytes * MIB;
        status.write(files);
    }

    /// Replaces the coordination with a new one.
    fn restart(&mut self) {
        self.coordination = Coordination::new(settings(100 * MIB));
    }

    fn round(&mut self, second: u64) -> Vec<CoordinationEvent> {
        let places = [self.folder.path().to_owned()];
        let round = self
            .coordination
            .round(&places, Duration::from_secs(second));
        round.unwrap()
    }

    /// Runs rounds until no more events happen; after each round, every job obeys.
    fn settle(&mut self) -> Vec<CoordinationEvent> {
        let mut all = Vec::new();
        loop {
            self.time += 1;
            let said = self.round(self.time);
            let held: u64 = self.jobs.iter().map(|(_, status)| status.held).sum();
            assert!(held <= self.coordination.charged_bytes());
            if said.is_empty() {
                return all;
            }
            all.extend(said);
            for (files, status) in &mut self.jobs {
                status.obey(files);
            }
        }
    }

    /// Returns the MiB that the coordination counts.
    fn charged(&self) -> u64 {
        self.coordination.charged_bytes() / MIB
    }

    /// Returns the limits of the jobs in MiB.
    fn limits(&self) -> Vec<u64> {
        self.jobs
            .iter()
            .map(|(_, status)| status.limit / MIB)
            .collect()
    }
}

/// Returns the reported problem of a job, if any.
fn problem(said: &[CoordinationEvent], of: &str) -> Option<String> {
    said.iter().find_map(|said| match said {
        CoordinationEvent::Problem { job, problem } if job == of => Some(problem.clone()),
        _ => None,
    })
}

/// Returns whether a job is reported gone.
fn is_gone(said: &[CoordinationEvent], of: &str) -> bool {
    let is_it =
        |said: &CoordinationEvent| matches!(said, CoordinationEvent::Gone { job, .. } if job == of);
    said.iter().any(is_it)
}

fn names(jobs: &[JobPaths]) -> Vec<&str> {
    jobs.iter().map(|job| job.name.as_str()).collect()
}

#[test]
fn sizes_and_times_are_shown_in_the_unit_that_suits() {
    assert_eq!(show_bytes(0), "0 bytes");
    assert_eq!(show_bytes(1023), "1023 bytes");
    assert_eq!(show_bytes(1024), "1 KiB");
    assert_eq!(show_bytes(100 << 30), "100 GiB");
    assert_eq!(show_bytes(u64::MAX), "none");
    assert_eq!(show_micros(999), "999 us");
    assert_eq!(show_micros(1_500), "1.5 ms");
    assert_eq!(show_micros(600_000_000), "10 min");
    assert!(matches!(
        Screen::new(1).key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        KeyAction::Quit
    ));
}

#[test]
fn a_limit_is_a_byte_count_or_0() {
    assert_eq!(parse_limit(" 0"), Ok(0));
    assert_eq!(parse_limit("8 GiB"), Ok(8 << 30));
    for text in ["", "0GiB", "-1", "8GBB"] {
        assert!(parse_limit(text).is_err(), "{text}");
    }
}

#[test]
fn the_example_for_kubernetes_runs_commands_there_are() {
    let text = include_str!("../../../../examples/kubernetes/larder-top.yaml");
    let lines = text.lines().map(str::trim);
    let commands = lines.filter_map(|line| line.strip_prefix("command: "));
    let commands = commands.filter(|command| command.starts_with("[\"larder\""));
    let commands = commands.map(|command| {
        let words: Vec<String> = serde_json::from_str(command).unwrap();
        let cli = <OneCommand as clap::Parser>::try_parse_from(words);
        cli.unwrap().command
    });
    let commands: Vec<_> = commands.collect();
    assert!(matches!(
        commands[..],
        [
            crate::JobsCommand::Top(_),
            crate::JobsCommand::Coordinate(_)
        ]
    ));
}

#[derive(clap::Parser)]
struct OneCommand {
    #[command(subcommand)]
    command: crate::JobsCommand,
}
