//! Configuration options, as methods of the constant that is the program's allocator, and settings
//! that change while the program runs.

use core::time::Duration;

use crate::config::{Config, HugePages};
use crate::global_alloc::Larder;
use crate::process::PROCESS;

impl Larder {
    /// Sets how many frames of each stack are kept, beginning with the innermost. The default is 16
    /// in every configuration, and the maximum is 32. With 0 no stack is walked.
    #[must_use]
    pub const fn with_stack_frames(self, frames: u32) -> Self {
        Self(Config {
            stack_frames: frames,
            ..self.0
        })
    }

    /// Sets whether a checking heap reports the blocks that are not freed when the process ends, by
    /// the stacks that allocated them, most bytes first. Works only on Linux, where the report
    /// comes after the `atexit` functions and the destructors of static values. Many programs free
    /// nothing at their end.
    #[must_use]
    pub const fn with_leaks(self, leaks: bool) -> Self {
        Self(Config { leaks, ..self.0 })
    }

    /// Sets whether the heap prints its statistics, and the peak memory of the process, on standard
    /// error when the process ends. Works only on Linux, where this happens after the `atexit`
    /// functions and the destructors of static values. A program that has closed standard error by
    /// then prints nothing.
    #[must_use]
    pub const fn with_stats(self, stats: bool) -> Self {
        Self(Config { stats, ..self.0 })
    }

    /// Gives guard pages to one in `one_in` of the blocks that are at least 16 bytes shorter than a
    /// page. 0, the default in every configuration, gives them to no block. Has no effect in a
    /// hardened or checking heap.
    ///
    /// Such a block lies alone in a page between two inaccessible ones, at the end or the start of
    /// that page. A read or write past that side faults; a write past the other side is found when
    /// the block is freed, as are double frees. The page of a freed block stays inaccessible until
    /// the pages of all other free blocks have been used again; there are 1024 such pages. Blocks
    /// are chosen when a thread has none cached. A free with a layout takes a slower path, which
    /// checks the address. At one in `one_in` of these frees the thread flushes its cache, so that
    /// a block which a loop frees and allocates again and again can be chosen; blocks of `malloc`
    /// and [`free`](Self::free) seldom are.
    #[must_use]
    pub const fn with_guard_pages(self, one_in: u32) -> Self {
        Self(Config {
            guard_one_in: one_in,
            ..self.0
        })
    }

    /// Sets whether a report explains the fault that ends a program at a guard page: the block, and
    /// the stacks that allocated and freed it. Works only on Linux. Installs a handler for
    /// `SIGSEGV` when the first block is chosen, but after the handler of Rust's runtime; a handler
    /// that the program installs later stays in place. At the first fault of any kind, the old
    /// handler is restored and the fault happens again, so the program ends as it would have
    /// without this option.
    #[must_use]
    pub const fn with_fault_reports(self, explains_faults: bool) -> Self {
        Self(Config {
            explains_faults,
            ..self.0
        })
    }

    /// Returns this heap as C++'s `new` uses it: in a hardened heap,
    /// [`check_layout`](Self::check_layout) checks only blocks that were allocated through this
    /// value.
    #[must_use]
    pub const fn by_new(self) -> Self {
        Self(Config {
            by_new: true,
            ..self.0
        })
    }

    /// Sets the delay after which freed memory returns to the system: at most `delay` and at least
    /// half of it, rounded up to whole milliseconds. With `Duration::MAX` memory never returns, and
    /// less than 50 ms counts as 50 ms. With a delay of 100 ms or less, the heap also returns
    /// recently freed memory before it grows, as much as it is about to grow by.
    #[must_use]
    pub const fn with_purge_after(self, delay: Duration) -> Self {
        Self(Config {
            purge_ms: Config::millis(delay),
            ..self.0
        })
    }

    /// Changes the delay that [`with_purge_after`](Self::with_purge_after) describes, for the whole
    /// process and from the next tick on, which is at most half the former delay away. After
    /// `Duration::MAX`, memory returns again once the program allocates something that no thread's
    /// cache has. [`trim`](Self::trim) returns idle memory at once.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use larder::Larder;
    ///
    /// # static HEAP: Larder = Larder::new();
    /// HEAP.set_purge_after(Duration::MAX); // a burst of work: keep all pages
    /// HEAP.set_purge_after(Duration::from_secs(1));
    /// ```
    pub fn set_purge_after(&self, delay: Duration) {
        PROCESS.tuning.apply(&self.0);
        PROCESS.tuning.set_purge_ms(Config::millis(delay));
        PROCESS.purger.delay_changed(&PROCESS.tuning);
    }

    /// Sets how many bytes the heap should hold at most, in blocks and as idle memory; `u64::MAX`,
    /// the value at first, sets no limit. Before the last eighth of the limit is reached, idle
    /// memory returns to the system, even where the delay is `Duration::MAX`. No allocation is
    /// refused: if the blocks alone exceed the limit, allocations become slower, because nothing is
    /// cached. The limit of a container or cgroup counts without this call; the lower one counts.
    pub fn set_memory_limit(&self, bytes: u64) {
        PROCESS.memory_limit.set_own(bytes);
    }

    /// Sets whether the heap may start a thread that returns memory while the program is idle.
    /// Without the thread, memory returns when the program next allocates a lot, and recently freed
    /// memory returns before the heap grows.
    ///
    /// An allocation starts the thread once 8 MiB are in use. While any memory is idle, the thread
    /// sleeps between two ticks for half the delay; then it sleeps until 2 MiB have been freed. It
    /// ends when less than 8 MiB are in use or no other thread uses the heap. It receives no
    /// signals, and runs only on the processors of the main thread. A program that must stay
    /// single-threaded (for `unshare` or `setns`), or that blocks thread creation for itself,
    /// passes `false`.
    #[must_use]
    pub const fn with_background_purge(self, background: bool) -> Self {
        Self(Config {
            background,
            ..self.0
        })
    }

    /// Lets environment variables change the configuration. They are read at the first allocation
    /// that a thread's cache cannot serve. An invalid value is reported on standard error and
    /// ignored. All variables are ignored if the program runs with elevated privileges.
    ///
    /// | variable | values |
    /// |---|---|
    /// | `LARDER_MODE` | `balanced`, `speed`, `memory`, `hardened` or `checking`: what [`new`](Self::new), [`speed`](Self::speed), [`memory`](Self::memory), [`hardened`](Self::hardened) and [`checking`](Self::checking) choose |
    /// | `LARDER_PURGE_AFTER` | milliseconds, or `never` |
    /// | `LARDER_BACKGROUND_PURGE` | `yes` or `no` |
    /// | `LARDER_HUGE_PAGES` | minimum size for which huge pages are requested, such as `64MiB` (a plain number is in MiB), or `never` |
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

    /// Sets when the heap requests huge pages.
    #[must_use]
    pub const fn with_huge_pages(self, huge_pages: HugePages) -> Self {
        Self(Config {
            huge_pages,
            ..self.0
        })
    }
}
