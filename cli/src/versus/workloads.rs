//! The workloads of `versus`, by name.
//!
//! The worker package includes this file by its path, so that the command and its workers cannot disagree. The file
//! depends on nothing.

/// One line of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    /// A short name, which is never reused for another workload.
    pub(crate) name: &'static str,
    /// Number of threads that use the allocator concurrently. A process with one thread stays on one core.
    pub(crate) threads: u32,
    /// Whether the workload tells the allocator where its steps begin and end.
    pub(crate) steps: bool,
    pub(crate) kind: Kind,
    /// A description.
    pub(crate) about: &'static str,
}

/// The purpose of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Measures the time and memory of the operations.
    Timed,
    /// Measures the times of single frames. The workload lasts as long as its schedule, so its own time says nothing.
    Frames,
    /// Counts instructions. The workload is little more than a loop around one pair of calls, so its time says little.
    /// It runs only if it is named.
    Bare,
    /// Measures the times of single calls (`--tail`). The workload's own time says little. Without `--tail`, it runs
    /// only if it is named.
    Cliff,
    /// Measures resident over live bytes. The workload's duration is fixed, so its time says nothing and is omitted
    /// from its row. It runs only if it is named.
    Memory,
}

/// Seconds of `server` at scale 1.
pub(crate) const SERVER_SECONDS: u32 = 60;

impl Workload {
    /// Returns whether Larder is compared with its peers on the workload: its time is a measure, and it has no steps,
    /// since no peer supports them.
    pub(crate) const fn is_compared(&self) -> bool {
        !self.steps && matches!(self.kind, Kind::Timed)
    }
}

const fn workload(name: &'static str, threads: u32, about: &'static str) -> Workload {
    Workload {
        name,
        threads,
        steps: false,
        kind: Kind::Timed,
        about,
    }
}

const fn steps(name: &'static str, about: &'static str) -> Workload {
    Workload {
        steps: true,
        ..workload(name, 1, about)
    }
}

const fn bare(name: &'static str, about: &'static str) -> Workload {
    Workload {
        kind: Kind::Bare,
        ..workload(name, 1, about)
    }
}

/// Creates a workload of two threads: one runs frames, and the other allocates all the time.
const fn frames(name: &'static str, about: &'static str) -> Workload {
    Workload {
        kind: Kind::Frames,
        ..workload(name, 2, about)
    }
}

const fn cliff(name: &'static str, about: &'static str) -> Workload {
    Workload {
        kind: Kind::Cliff,
        ..workload(name, 1, about)
    }
}

const fn memory(name: &'static str, threads: u32, about: &'static str) -> Workload {
    Workload {
        kind: Kind::Memory,
        ..workload(name, threads, about)
    }
}

/// Every workload, in the order of the tables.
pub(crate) const WORKLOADS: &[Workload] = &[
    workload("pairs-1", 1, "8 to 1024 bytes allocated and freed at once"),
    workload("pairs-64", 1, "the same in batches of 64"),
    workload("pairs-4096", 1, "the same in batches of 4096"),
    workload("boxes", 1, "boxes of 48 bytes in batches of 64"),
    bare(
        "bare-sizes",
        "64 blocks of sizes drawn before, allocated and freed again and again",
    ),
    bare("bare-boxes", "the same with boxes of 48 bytes"),
    workload(
        "larson-1",
        1,
        "5000 slots replaced at random; threads come one after another and inherit them",
    ),
    workload("larson-2", 2, "the same on 2 threads, each with its slots"),
    workload("larson-4", 4, "the same on 4 threads, each with its slots"),
    workload(
        "pipe-1",
        2,
        "one thread allocates batches of 256, another frees them",
    ),
    workload("pipe-2", 4, "two such pairs of threads"),
    workload(
        "phases",
        2,
        "50000 blocks allocated by one thread, then all freed by another, again and again",
    ),
    workload("vec", 1, "one vector grown to 64 MiB by push"),
    workload("vecs", 1, "4096 vectors grown by push in random order"),
    workload(
        "map",
        1,
        "hash map from strings to vectors: entries come and go",
    ),
    workload("trees-1", 1, "binary trees built, walked, dropped"),
    workload("trees-2", 2, "the same on 2 threads"),
    workload("btree", 1, "ordered map of boxed numbers: keys come and go"),
    workload("json", 1, "5 MB of JSON parsed and printed"),
    workload(
        "requests-2",
        2,
        "requests of 2 kB of JSON parsed, kept among 400, and printed and freed by either thread",
    ),
    workload(
        "large-touched",
        1,
        "64 KiB to 8 MiB, 32 of them live, every page written",
    ),
    workload(
        "large-untouched",
        1,
        "64 KiB to 8 MiB, 32 of them live, first bytes written",
    ),
    steps(
        "steps-one",
        "a training step of 144 buffers, 64 KiB to 8 MiB, again and again; every page written and read",
    ),
    steps(
        "steps-three",
        "the same with three lengths of batches in turn",
    ),
    steps("steps-filled", "as steps-one, every byte written and read"),
    steps(
        "steps-untouched",
        "as steps-one, nothing written or read; per block",
    ),
    workload(
        "mixed",
        1,
        "log-normal sizes and lifetimes; memory measured where live bytes peak",
    ),
    workload(
        "storm-turn",
        2,
        "short-lived threads one after another, half of their blocks outlive them",
    ),
    workload(
        "storm-once",
        64,
        "64 short-lived threads at once, again and again",
    ),
    workload(
        "server-mix",
        32,
        "32 threads with log-normal sizes; they exchange blocks, resize some, change their sizes, and one of them forks",
    ),
    workload(
        "zeroed-sparse",
        1,
        "zeroed blocks of 4 KiB to 1 MiB, one byte in 64 KiB written",
    ),
    workload(
        "zeroed-full",
        1,
        "zeroed blocks of 4 KiB to 1 MiB, every cache line read and written",
    ),
    workload("syn-1", 1, "Rust source parsed by syn and printed by quote"),
    workload("syn-2", 2, "the same on 2 threads, each for itself"),
    workload("markdown", 1, "Markdown to HTML by pulldown-cmark"),
    workload("toml", 1, "TOML parsed, edited and printed by toml_edit"),
    workload("regex", 1, "regular expressions compiled and tried"),
    frames(
        "frames-one-cpu",
        "a frame of 20 blocks of 150 kB every 3 ms beside a thread that replaces large blocks all the time, both on one core",
    ),
    frames(
        "frames-loaded",
        "the same anywhere, beside as many threads that compute as there are cores",
    ),
    frames(
        "frames-fifo",
        "as frames-one-cpu, and the thread with the frames runs before ordinary ones (SCHED_FIFO)",
    ),
    cliff(
        "survivors",
        "320 MiB of blocks of 8 KiB, all but each eighth freed, little for a while, allocated again",
    ),
    Workload {
        steps: true,
        ..cliff(
            "long-steps",
            "a step of 16000 blocks of 40 to 80 kB, each live for up to a tenth of it, five times",
        )
    },
    memory(
        "idle-0",
        1,
        "1 GiB of blocks, all but a sixteenth freed; memory measured right after the last free",
    ),
    memory(
        "idle-1",
        1,
        "the same a second later, nobody calling the allocator meanwhile",
    ),
    memory("idle-5", 1, "the same five seconds later"),
    memory(
        "server",
        64,
        "a server for a minute, whose threads come and go and whose sizes change; mean of resident over live bytes once its store is full",
    ),
];

/// Returns the workload with this name.
pub(crate) fn find(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}
