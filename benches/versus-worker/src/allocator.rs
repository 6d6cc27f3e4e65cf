//! The global allocator of this build, chosen by exactly one feature; with the feature `tail`, each call is timed.

/// Name of the allocator in tables, which is also the feature's name.
pub const NAME: &str = chosen::NAME;

#[cfg(not(feature = "tail"))]
#[global_allocator]
static GLOBAL: chosen::Heap = chosen::heap();

#[cfg(feature = "tail")]
#[global_allocator]
static GLOBAL: crate::tail::Timed<chosen::Heap> = crate::tail::Timed(chosen::heap());

/// Begins a step, for the allocator that plans steps. The step ends when the returned value is dropped.
#[cfg(feature = "larder-steps")]
pub use larder::step;

/// The end of a step, for an allocator that does not plan steps.
#[cfg(not(feature = "larder-steps"))]
pub struct Step;

/// Does nothing, since this allocator does not plan steps.
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
    feature = "smmalloc",
    feature = "talc",
    feature = "rlsf",
    feature = "dlmalloc",
)))]
compile_error!("build the worker with an allocator, such as `--features system`");

// With several features the module below exists several times, which the compiler refuses.

#[cfg(feature = "system")]
mod chosen {
    // The default allocator of Rust programs.
    pub const NAME: &str = "system";
    pub type Heap = std::alloc::System;
    pub const fn heap() -> Heap {
        std::alloc::System
    }
}

#[cfg(feature = "larder")]
mod chosen {
    pub const NAME: &str = "larder";
    pub type Heap = larder::Larder;
    pub const fn heap() -> Heap {
        larder::Larder::new()
    }
}

#[cfg(feature = "larder-speed")]
mod chosen {
    pub const NAME: &str = "larder-speed";
    pub type Heap = larder::Larder;
    pub const fn heap() -> Heap {
        larder::Larder::speed()
    }
}

#[cfg(feature = "larder-memory")]
mod chosen {
    pub const NAME: &str = "larder-memory";
    pub type Heap = larder::Larder;
    pub const fn heap() -> Heap {
        larder::Larder::memory()
    }
}

#[cfg(feature = "larder-steps")]
mod chosen {
    pub const NAME: &str = "larder-steps";
    pub type Heap = larder::Larder;
    pub const fn heap() -> Heap {
        larder::Larder::new()
    }
}

#[cfg(feature = "mimalloc2")]
mod chosen {
    pub const NAME: &str = "mimalloc2";
    pub type Heap = mimalloc::MiMalloc;
    pub const fn heap() -> Heap {
        mimalloc::MiMalloc
    }
}

#[cfg(feature = "mimalloc3")]
mod chosen {
    pub const NAME: &str = "mimalloc3";
    pub type Heap = mimalloc::MiMalloc;
    pub const fn heap() -> Heap {
        mimalloc::MiMalloc
    }
}

#[cfg(feature = "snmalloc")]
mod chosen {
    pub const NAME: &str = "snmalloc";
    pub type Heap = snmalloc_rs::SnMalloc;
    pub const fn heap() -> Heap {
        snmalloc_rs::SnMalloc
    }
}

#[cfg(feature = "jemalloc")]
mod chosen {
    pub const NAME: &str = "jemalloc";
    pub type Heap = tikv_jemallocator::Jemalloc;
    pub const fn heap() -> Heap {
        tikv_jemallocator::Jemalloc
    }
}

#[cfg(feature = "rpmalloc")]
mod chosen {
    pub const NAME: &str = "rpmalloc";
    pub type Heap = rpmalloc::RpMalloc;
    pub const fn heap() -> Heap {
        rpmalloc::RpMalloc
    }
}

#[cfg(feature = "rusty-alloc")]
mod chosen {
    pub const NAME: &str = "rusty-alloc";
    pub type Heap = rusty_alloc_api::RustyAlloc;
    pub const fn heap() -> Heap {
        rusty_alloc_api::RustyAlloc
    }
}

#[cfg(feature = "smmalloc")]
mod chosen {
    pub const NAME: &str = "smmalloc";
    pub type Heap = smmalloc::Smalloc;
    pub const fn heap() -> Heap {
        smmalloc::Smalloc::new()
    }
}

#[cfg(feature = "talc")]
mod chosen {
    use std::alloc::System;

    use talc::source::GlobalAllocSource;

    pub const NAME: &str = "talc";
    /// Bytes of a request to the source. They are so many that the source is rarely called; pages are committed only
    /// when they are touched.
    const HEAP_BYTES: usize = 64 << 20;
    pub type Heap = talc::TalcLock<spin::Mutex<()>, GlobalAllocSource<System>>;
    pub const fn heap() -> Heap {
        talc::TalcLock::new(GlobalAllocSource::with_block_size(System, HEAP_BYTES))
    }
}

#[cfg(feature = "rlsf")]
mod chosen {
    pub const NAME: &str = "rlsf";
    pub type Heap = rlsf::GlobalTlsf;
    pub const fn heap() -> Heap {
        rlsf::GlobalTlsf::new()
    }
}

#[cfg(feature = "dlmalloc")]
mod chosen {
    pub const NAME: &str = "dlmalloc";
    pub type Heap = dlmalloc::GlobalDlmalloc;
    pub const fn heap() -> Heap {
        dlmalloc::GlobalDlmalloc
    }
}
