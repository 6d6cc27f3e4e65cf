//! Configuration options, as methods of the constant that is the program's allocator.

use core::time::Duration;

use crate::config::{Config, HugePages};
use crate::global_alloc::Larder;

impl Larder {
    /// Sets how many frames of each stack are kept, from the innermost on: 16 in each
    /// configuration, 32 at most. With 0 no stack is walked.
    #[must_use]
    pub const fn with_stack_frames(self, frames: u32) -> Self {
        Self(Config {
            stack_frames: frames,
            ..self.0
        })
    }

    /// Sets whether a checking heap reports the blocks that are not freed when the process ends, by
    /// the stacks that allocated them, most bytes first. On Linux, after the functions of `atexit`
    /// and the destructors of static values. Many programs free nothing at their end.
    #[must_use]
    pub const fn with_leaks(self, leaks: bool) -> Self {
        Self(Config { leaks, ..self.0 })
    }

    /// Sets whether the heap prints its numbers, and the peak memory of the process, on standard
    /// error when the process ends. On Linux, after the functions of `atexit` and the destructors
    /// of static values; a program that has closed standard error by then prints nothing.
    #[must_use]
    pub const fn with_stats(self, stats: bool) -> Self {
        Self(Config { stats, ..self.0 })
    }

    /// Gives guard pages to one block in `one_in`, of those up to a page less 16 bytes; to none
    /// with 0, as in each configuration. Has no effect in a hardened or checking heap.
    ///
    /// Such a block lies alone in a page between two inaccessible ones, at its end or its start. A
    /// read or write past that side faults; a write past the other is found when the block is
    /// freed, as are double frees. The page of a freed block stays inaccessible until the pages of
    /// all other free blocks have been used again; there are 256. Blocks are chosen where a thread
    /// has none cached. A free with a layout takes a slower path, which checks the address, and
    /// once in `one_in` of them the thread flushes its cache, so that a block which a loop frees
    /// and allocates again and again can be chosen; blocks of `malloc` and [`free`](Self::free)
    /// seldom are.
    #[must_use]
    pub const fn with_guard_pages(self, one_in: u32) -> Self {
        Self(Config {
            guard_one_in: one_in,
            ..self.0
        })
    }

    /// Sets whether a report explains the fault that ends a program at a guard page: the block, and
    /// the stacks that allocated and freed it. On Linux. Installs a handler of `SIGSEGV` when the
    /// first block is chosen, and restores the old one at the first fault of any kind, which then
    /// happens again: the program ends as it would have.
    #[must_use]
    pub const fn with_fault_reports(self, explains_faults: bool) -> Self {
        Self(Config {
            explains_faults,
            ..self.0
        })
    }

    /// Returns this heap as C++'s `new` uses it: in a hardened heap,
    /// [`check_layout`](Self::check_layout) checks only blocks that were allocated through it.
    #[must_use]
    pub const fn by_new(self) -> Self {
        Self(Config {
            by_new: true,
            ..self.0
        })
    }

    /// Sets the delay after which freed memory returns to the system: `delay` at most and half of
    /// it at least, in whole milliseconds, rounded up. `Duration::MAX` never returns memory, and
    /// less than 50 ms counts as 50 ms. With 100 ms at most, the heap also returns memory that was
    /// freed only just now, before it grows and as much as it grows by.
    #[must_use]
    pub const fn with_purge_after(self, delay: Duration) -> Self {
        Self(Config {
            purge_ms: Config::millis(delay),
            ..self.0
        })
    }

    /// Sets whether the heap may start a thread that returns memory while the program is idle.
    /// Without it memory returns when the program next allocates much, and, if it was freed only
    /// just now, before the heap grows.
    ///
    /// An allocation starts the thread once 8 MiB are in use. It sleeps for half the delay between
    /// two ticks while any memory is idle, then until 2 MiB were freed, and ends when less than 8
    /// MiB are in use or no other thread uses the heap. It receives no signals, and keeps to the
    /// processors of the main thread. A program that must stay single-threaded (for `unshare` or
    /// `setns`) or that forbids itself to start threads passes `false`.
    #[must_use]
    pub const fn with_background_purge(self, background: bool) -> Self {
        Self(Config {
            background,
            ..self.0
        })
    }

    /// Lets environment variables change the configuration. They are read when the heap first
    /// allocates more than a thread has cached. An invalid value is reported on standard error and
    /// ignored; all of them are ignored where the program has more rights than its user.
    ///
    /// | variable | values |
    /// |---|---|
    /// | `LARDER_MODE` | `balanced`, `speed`, `memory`, `hardened` or `checking`: what [`new`](Self::new), [`speed`](Self::speed), [`memory`](Self::memory), [`hardened`](Self::hardened) and [`checking`](Self::checking) choose |
    /// | `LARDER_PURGE_AFTER` | milliseconds, or `never` |
    /// | `LARDER_BACKGROUND_PURGE` | `yes` or `no` |
    /// | `LARDER_HUGE_PAGES` | size from which on huge pages are asked for, such as `64MiB` (a plain number counts MiB), or `never` |
    /// | `LARDER_ON_MISUSE` | `abort` or `report`: an [`OnMisuse`](crate::OnMisuse) |
    /// | `LARDER_LEAKS` | `yes` or `no`: [`with_leaks`](Self::with_leaks) |
    /// | `LARDER_STATS` | `yes` or `no`: [`with_stats`](Self::with_stats) |
    /// | `LARDER_STACK_FRAMES` | a number up to 32: [`with_stack_frames`](Self::with_stack_frames) |
    /// | `LARDER_GUARD` | a number above 0, or `never`: [`with_guard_pages`](Self::with_guard_pages) |
    /// | `LARDER_GUARD_FAULTS` | `yes` or `no`: [`with_fault_reports`](Self::with_fault_reports) |
    #[cfg(unix)]
    #[must_use]
    pub const fn with_environment(self) -> Self {
        Self(Config {
            environment: true,
            ..self.0
        })
    }

    /// Sets when the heap asks for huge pages.
    #[must_use]
    pub const fn with_huge_pages(self, huge_pages: HugePages) -> Self {
        Self(Config {
            huge_pages,
            ..self.0
        })
    }
}
