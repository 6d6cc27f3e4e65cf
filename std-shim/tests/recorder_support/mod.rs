//! Children of a test: its own program again, which plays one part and exits.
//!
//! A recording lasts as long as its process, so each needs a process of its own. A test calls [`Scene::is_child`]
//! first; in the parent it starts itself again with [`Scene::run`].
#![allow(clippy::unwrap_used)] // helpers of tests
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use larder_trace::{Event, Trace, TraceError};

const CHILD: &str = "RECORDER_TEST_CHILD";

/// Returns whether this process was started to play the part of `test`.
pub(crate) fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|name| name == test)
}

/// A folder and the children that record into it; gone when dropped.
pub(crate) struct Scene {
    folder: PathBuf,
    test: &'static str,
    variables: Vec<(OsString, OsString)>,
}

impl Scene {
    /// For the test of this name, recording every block to `program.trace`.
    pub(crate) fn new(test: &'static str) -> Self {
        let name = format!("larder-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let scene = Self {
            folder,
            test,
            variables: Vec::new(),
        };
        let trace = scene.path("program.trace");
        scene.with("LARDER_RECORD", trace)
    }

    /// Sets a variable of the child's environment.
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.into(), value.as_ref().into()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs the child to its end, whichever that is.
    pub(crate) fn run(&self) -> Child {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", self.test, "--nocapture", "--test-threads=1"])
            .env_remove("LARDER_RECORD")
            .env_remove("LARDER_RECORD_FROM")
            .env(CHILD, self.test)
            .envs(self.variables.iter().cloned())
            .current_dir(&self.folder)
            .output()
            .unwrap();
        Child(output)
    }

    /// Runs the child, which must succeed and complain of nothing.
    pub(crate) fn run_well(&self) -> Child {
        let child = self.run();
        assert!(child.0.status.success(), "{child:?}");
        assert_eq!(child.stderr(), "");
        child
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.path("program.trace")).unwrap()
    }

    pub(crate) fn load(&self) -> Result<Trace, TraceError> {
        Trace::load(&self.path("program.trace"))
    }

    pub(crate) fn trace(&self) -> Trace {
        self.load().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The trace's last line.
    pub(crate) fn last_line(&self) -> String {
        self.text().lines().last().unwrap().to_owned()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A child that has ended.
#[derive(Debug)]
pub(crate) struct Child(pub(crate) Output);

impl Child {
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    /// What the child printed as `key=value`.
    pub(crate) fn said(&self, key: &str) -> u64 {
        let stdout = String::from_utf8(self.0.stdout.clone()).unwrap();
        let value = stdout
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or_else(|| panic!("no {key} in {stdout}"));
        value.parse().unwrap()
    }
}

/// The totals of a trace, counted independently.
#[derive(Debug, PartialEq, Eq, Default)]
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

    /// Reports them to the parent.
    pub(crate) fn say(&self) {
        println!(
            "\nallocs={}\nfrees={}\nbytes={}",
            self.allocs, self.frees, self.bytes
        );
        println!(
            "live_bytes={}\npeak_bytes={}",
            self.live_bytes, self.peak_bytes
        );
    }

    /// Parses a child's report.
    pub(crate) fn said_by(child: &Child) -> Self {
        Self {
            allocs: child.said("allocs"),
            frees: child.said("frees"),
            bytes: child.said("bytes"),
            live_bytes: child.said("live_bytes"),
            peak_bytes: child.said("peak_bytes"),
        }
    }
}

pub(crate) fn alloc(id: u32, bytes: u64) -> Event {
    Event::Alloc { id, bytes }
}

pub(crate) fn free(id: u32) -> Event {
    Event::Free { id }
}

pub(crate) fn step(number: u32) -> Event {
    Event::Step { number }
}
