//! Children of a test: the same program again, which plays one part and exits.
//!
//! A recording lasts as long as its process, so each test needs processes of its own. It starts one
//! with [`Scene::run`], where the ignored test `plays_a_part` plays the part that [`part`] names.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use larder_trace::{Event, Trace};

const PART: &str = "RECORDER_TEST_PART";

/// Returns the part of this process, if it was started to play one.
pub(crate) fn part() -> Option<String> {
    env::var(PART).ok()
}

/// Returns a command that plays `part` in this process's environment.
pub(crate) fn player(part: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "plays_a_part", "--ignored", "--nocapture"])
        .env(PART, part);
    command
}

/// A folder into which children record; removed when dropped.
pub(crate) struct Scene {
    folder: PathBuf,
    part: String,
    variables: Vec<(OsString, OsString)>,
}

impl Scene {
    /// Prepares a child that plays a part and records every block to `program.trace`.
    pub(crate) fn new(part: impl Into<String>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("larder-recorder-{}-{number}", std::process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let scene = Self {
            folder,
            part: part.into(),
            variables: Vec::new(),
        };
        let trace = scene.path("program.trace");
        scene.with("LARDER_RECORD", trace)
    }

    pub(crate) fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.into(), value.as_ref().into()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let files = fs::read_dir(&self.folder).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    /// Runs the child, however it ends.
    pub(crate) fn run(&self) -> Child {
        let mut command = player(&self.part);
        command
            .env_remove("LARDER_RECORD_FROM")
            .envs(self.variables.iter().cloned())
            .current_dir(&self.folder);
        Child(command.output().unwrap())
    }

    /// Runs the child, which must succeed and write nothing to standard error.
    pub(crate) fn run_well(&self) -> Child {
        let child = self.run();
        assert!(child.0.status.success(), "{}: {child:?}", self.part);
        assert_eq!(child.stderr(), "", "{}", self.part);
        child
    }

    /// Runs the child, which must succeed with one line on standard error. Returns that line.
    pub(crate) fn run_with_complaint(&self) -> String {
        let child = self.run();
        assert!(child.0.status.success(), "{}: {child:?}", self.part);
        let stderr = child.stderr();
        assert!(
            stderr.lines().count() == 1 && stderr.ends_with('\n'),
            "{stderr}"
        );
        stderr
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.path("program.trace")).unwrap()
    }

    /// Returns the trace as `larder replay` reads it.
    pub(crate) fn trace(&self) -> Trace {
        let trace = Trace::load(&self.path("program.trace"));
        trace.unwrap_or_else(|error| panic!("{}: {error}", self.part))
    }

    /// Returns the lines of the trace that are events or that begin with `# between`.
    pub(crate) fn events(&self) -> String {
        self.trace();
        let text = self.text();
        let lines = text
            .lines()
            .map(|line| line.replace("# between", "between"));
        let events: Vec<String> = lines.filter(|line| !line.starts_with('#')).collect();
        events.join(", ")
    }

    /// Returns the reason in the trace's last line.
    pub(crate) fn end(&self) -> String {
        let text = self.text();
        let last = text.lines().last().unwrap();
        last.trim_start_matches("# recording ended: ").to_owned()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[derive(Debug)]
pub(crate) struct Child(pub(crate) Output);

impl Child {
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    /// Asserts that the child printed this value.
    #[track_caller]
    pub(crate) fn assert_said(&self, value: impl std::fmt::Debug) {
        let stdout = String::from_utf8(self.0.stdout.clone()).unwrap();
        let expected = format!("{value:?}");
        assert!(stdout.contains(&expected), "{stdout} and not {expected}");
    }
}

/// The totals of a trace, counted independently.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    pub(crate) bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) peak_bytes: u64,
}

impl Sums {
    pub(crate) fn of(trace: &Trace) -> Self {
        let mut sums = Self::default();
        let mut live = HashMap::new();
        for event in trace.events() {
            match *event {
                Event::Alloc { id, bytes } => {
                    live.insert(id, bytes);
                    sums.add(bytes);
                }
                Event::Free { id } => sums.take(live.remove(&id).unwrap()),
                Event::Step { .. } => {}
            }
        }
        sums
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.allocs += 1;
        self.bytes += bytes;
        self.live_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    pub(crate) fn take(&mut self, bytes: u64) {
        self.frees += 1;
        self.live_bytes -= bytes;
    }
}
