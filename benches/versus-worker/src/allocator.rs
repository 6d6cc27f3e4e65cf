//! The global allocator of this build, chosen by exactly one feature.

/// Its name in tables: the feature's.
pub const NAME: &str = chosen::NAME;

/// Tells the allocator that a step begins; it ends where the answer is dropped.
#[cfg(feature = "larder-steps")]
pub use larder::step;

/// What ends a step that the allocator does not hear of.
#[cfg(not(feature = "larder-steps"))]
pub struct Step;

/// Only one allocator knows of steps.
#[cfg(not(feature = "larder-steps"))]
pub const fn step() -> Step {
    Step
}

#[cfg(not(any(
    feature = "system",
    feature = "larder",
    feature = "larder-speed",
    feature = "larder-memory",
    feature = "larder-steps",
    feature = "mimalloc2",
    feature = "mimalloc3",
    feature = "snmalloc",
    feature = "jemalloc",
    feature = "rpmalloc",
    feature = "rusty-alloc",
    feature = "talc",
    feature = "rlsf",
    feature = "dlmalloc",
)))]
compile_error!("build the worker with an allocator, such as `--features system`");

// With several allocators the module below exists several times, which the compiler refuses.

#[cfg(feature = "system")]
mod chosen {
    // What a program gets that names no allocator.
    pub const NAME: &str = "system";
}

#[cfg(feature = "larder")]
mod chosen {
    pub const NAME: &str = "larder";
    #[global_allocator]
    static GLOBAL: larder::Larder = larder::Larder::new();
}

#[cfg(feature = "larder-speed")]
mod chosen {
    pub const NAME: &str = "larder-speed";
    #[global_allocator]
    static GLOBAL: larder::Larder = larder::Larder::speed();
}

#[cfg(feature = "larder-memory")]
mod chosen {
    pub const NAME: &str = "larder-memory";
    #[global_allocator]
    static GLOBAL: larder::Larder = larder::Larder::memory();
}

#[cfg(feature = "larder-steps")]
mod chosen {
    pub const NAME: &str = "larder-steps";
    #[global_allocator]
    static GLOBAL: larder::Larder = larder::Larder::new();
}

#[cfg(feature = "mimalloc2")]
mod chosen {
    pub const NAME: &str = "mimalloc2";
    #[global_allocator]
    static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;
}

#[cfg(feature = "mimalloc3")]
mod chosen {
    pub const NAME: &str = "mimalloc3";
    #[global_allocator]
    static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;
}

#[cfg(feature = "snmalloc")]
mod chosen {
    pub const NAME: &str = "snmalloc";
    #[global_allocator]
    static GLOBAL: snmalloc_rs::SnMalloc = snmalloc_rs::SnMalloc;
}

#[cfg(feature = "jemalloc")]
mod chosen {
    pub const NAME: &str = "jemalloc";
    #[global_allocator]
    static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
}

#[cfg(feature = "rpmalloc")]
mod chosen {
    pub const NAME: &str = "rpmalloc";
    #[global_allocator]
    static GLOBAL: rpmalloc::RpMalloc = rpmalloc::RpMalloc;
}

#[cfg(feature = "rusty-alloc")]
mod chosen {
    pub const NAME: &str = "rusty-alloc";
    #[global_allocator]
    static GLOBAL: rusty_alloc_api::RustyAlloc = rusty_alloc_api::RustyAlloc;
}

#[cfg(feature = "talc")]
mod chosen {
    use std::alloc::System;

    use talc::source::GlobalAllocSource;

    pub const NAME: &str = "talc";
    /// Large enough that the source below is asked rarely; the pages are committed when touched.
    const HEAP_BYTES: usize = 64 << 20;
    #[global_allocator]
    static GLOBAL: talc::TalcLock<spin::Mutex<()>, GlobalAllocSource<System>> =
        talc::TalcLock::new(GlobalAllocSource::with_block_size(System, HEAP_BYTES));
}

#[cfg(feature = "rlsf")]
mod chosen {
    pub const NAME: &str = "rlsf";
    #[global_allocator]
    static GLOBAL: rlsf::GlobalTlsf = rlsf::GlobalTlsf::new();
}

#[cfg(feature = "dlmalloc")]
mod chosen {
    pub const NAME: &str = "dlmalloc";
    #[global_allocator]
    static GLOBAL: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
}
