//! The allocators of `versus`, which are features of the worker package.

/// One column of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocator {
    /// Name of the allocator, which is the worker's feature.
    pub(crate) name: &'static str,
    /// The allocator's crate, if it has a version of its own.
    pub(crate) package: Option<&'static str>,
    /// Whether one lock guards the whole allocator. Such an allocator is not made for many threads,
    /// and runs only workloads with one thread.
    pub(crate) one_lock: bool,
    /// Whether the allocator runs only workloads with steps. Another entry has the same allocator
    /// without steps.
    pub(crate) steps_only: bool,
    /// Whether the allocator is this repository's. All others are peers.
    pub(crate) ours: bool,
    pub(crate) about: &'static str,
}

const fn allocator(name: &'static str, package: &'static str, about: &'static str) -> Allocator {
    Allocator {
        name,
        package: Some(package),
        one_lock: false,
        steps_only: false,
        ours: false,
        about,
    }
}

/// Returns the entry for a configuration of this repository's allocator.
const fn ours(name: &'static str, about: &'static str) -> Allocator {
    Allocator {
        package: None,
        ours: true,
        ..allocator(name, name, about)
    }
}

const fn locked(name: &'static str, about: &'static str) -> Allocator {
    Allocator {
        one_lock: true,
        ..allocator(name, name, about)
    }
}

/// The system's allocator. If allocators give different answers, its answer counts as right.
pub(crate) const SYSTEM: &str = "system";

/// Larder in its default configuration.
pub(crate) const LARDER: &str = "larder";

/// Larder in each configuration that a program may choose.
pub(crate) const CONFIGURATIONS: [&str; 3] = [LARDER, "larder-speed", "larder-memory"];

/// Every allocator, in the order of the tables.
pub(crate) const ALLOCATORS: &[Allocator] = &[
    Allocator {
        package: None,
        ..allocator(
            SYSTEM,
            SYSTEM,
            "what a program gets that names none: malloc of the C library",
        )
    },
    ours(LARDER, "this repository's, time and memory in balance"),
    ours("larder-speed", "the same, time first"),
    ours("larder-memory", "the same, memory first"),
    Allocator {
        steps_only: true,
        ..ours(
            "larder-steps",
            "as larder, with notice of where a step begins",
        )
    },
    allocator(
        "mimalloc2",
        "mimalloc",
        "mimalloc, second line of versions, in C",
    ),
    allocator(
        "mimalloc3",
        "mimalloc",
        "mimalloc, third line of versions, in C",
    ),
    allocator("snmalloc", "snmalloc-rs", "snmalloc, in C++"),
    allocator("jemalloc", "tikv-jemallocator", "jemalloc, in C"),
    allocator("rpmalloc", "rpmalloc", "rpmalloc, in C"),
    allocator(
        "rusty-alloc",
        "rusty_alloc-api",
        "mimalloc's second line remade in Rust",
    ),
    allocator(
        "smmalloc",
        "smmalloc",
        "smalloc: a free list for each power of two, returns no memory, in Rust",
    ),
    locked(
        "talc",
        "Talc behind a spin lock, on heaps of 64 MiB, in Rust",
    ),
    locked("rlsf", "TLSF behind a lock, in Rust"),
    locked("dlmalloc", "dlmalloc behind a lock, remade in Rust"),
];

/// Returns the allocator with this name.
pub(crate) fn find(name: &str) -> Option<&'static Allocator> {
    ALLOCATORS.iter().find(|allocator| allocator.name == name)
}
