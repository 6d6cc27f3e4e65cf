//! [`Tuning`]: the configuration of a process.

use core::cell::UnsafeCell;
use core::mem;
use core::ptr;

use larder_core::Locked;
use larder_core::sync::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use super::{Config, HugePages, OnMisuse};
use crate::thread::wait::Sleep;

/// Maximum delay, in milliseconds, of a heap that puts memory first.
const SHORT_MS: u64 = 100;
/// Maximum number of failed requests for the configuration: more than any program makes before the
/// C library is initialized.
const MAX_IN_VAIN: u32 = 100;

/// The blocks that a heap checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum HeapMode {
    /// No blocks.
    Plain,
    /// Blocks with guard pages.
    Guarded,
    /// All blocks: the heap is hardened.
    Hardened,
}

/// The configuration of a process: [`Config::BALANCED`] until it is known.
pub(crate) struct Tuning {
    /// Written once, before `known` is.
    config: UnsafeCell<Config>,
    /// 1 once the configuration is known.
    known: AtomicU8,
    /// 1 once a request for the configuration has failed: blocks may then be allocated before it is
    /// known.
    early: AtomicU8,
    /// A [`HeapMode`].
    mode: AtomicU8,
    /// Milliseconds for which freed memory is kept; the program may change them.
    purge_ms: AtomicU64,
    /// An [`OnMisuse`] as one word.
    on_misuse: AtomicPtr<()>,
    /// Failed requests for the configuration.
    applying: Locked<u32, Sleep>,
}

// SAFETY: `config` is written once, under the lock `applying`, before `known` is set, and is not
// read earlier.
unsafe impl Sync for Tuning {}

impl Tuning {
    pub(crate) const fn new() -> Self {
        Self {
            config: UnsafeCell::new(Config::BALANCED),
            known: AtomicU8::new(0),
            early: AtomicU8::new(0),
            mode: AtomicU8::new(HeapMode::Plain as u8),
            purge_ms: AtomicU64::new(Config::BALANCED.purge_ms),
            on_misuse: AtomicPtr::new(ptr::null_mut()),
            applying: Locked::new(0),
        }
    }

    /// Makes `config` the configuration of the process if the process has none.
    #[inline]
    pub(crate) fn apply(&self, config: &Config) {
        // Acquire: a thread that sees `known` sees the whole configuration.
        if self.known.load(Ordering::Acquire) == 0 {
            self.apply_first(config);
        }
    }

    #[cold]
    fn apply_first(&self, config: &Config) {
        self.applying.with(|in_vain| {
            if self.is_known() {
                return;
            }
            let mut config = match config.with_environment() {
                Some(config) => config,
                // The C library has no environment yet; the next request tries again.
                None if *in_vain < MAX_IN_VAIN => {
                    *in_vain += 1;
                    self.early.store(1, Ordering::Relaxed);
                    return;
                }
                // The program has removed its environment.
                None => *config,
            };
            // A hardened heap checks every block already; a thread that allocated earlier would
            // bypass the check (LOCAL3).
            if config.hardened || self.had_early_blocks() {
                config.guard_one_in = 0;
            }
            config.stack_frames = config.stack_frames.min(Config::MAX_STACK_FRAMES);
            let mode = match (config.hardened, config.guard_one_in) {
                (true, _) => HeapMode::Hardened,
                (false, 1..) => HeapMode::Guarded,
                (false, 0) => HeapMode::Plain,
            };
            self.mode.store(mode as u8, Ordering::Relaxed);
            self.set_purge_ms(config.purge_ms);
            self.set_on_misuse(config.on_misuse);
            // SAFETY: the configuration is not read before it is known, and the lock admits one
            // writer.
            unsafe { *self.config.get() = config };
            // Release: see `apply`.
            self.known.store(1, Ordering::Release);
        });
    }

    /// Returns the configuration: [`Config::BALANCED`] until it is known.
    pub(crate) fn config(&self) -> &Config {
        // Acquire: the configuration is written.
        match self.known.load(Ordering::Acquire) {
            0 => &Config::BALANCED,
            // SAFETY: written before it was known, and never again.
            _ => unsafe { &*self.config.get() },
        }
    }

    /// Returns whether the configuration is known.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed) != 0
    }

    /// Returns whether blocks may have been allocated before the configuration was known.
    pub(crate) fn had_early_blocks(&self) -> bool {
        self.early.load(Ordering::Relaxed) != 0
    }

    /// Returns the heap's mode: [`HeapMode::Plain`] until it is known.
    #[inline(always)]
    pub(crate) fn mode(&self) -> HeapMode {
        // Relaxed: a thread that holds a block of a hardened heap, or one with guard pages, got it
        // from a thread that knew the mode.
        let mode = self.mode.load(Ordering::Relaxed);
        // SAFETY: only bytes of a `HeapMode` are written there.
        unsafe { mem::transmute::<u8, HeapMode>(mode) }
    }

    /// Returns the heap's mode, after applying `config` if it is the first configuration.
    #[inline(always)]
    pub(crate) fn mode_for(&self, config: &Config) -> HeapMode {
        self.apply(config);
        self.mode()
    }

    /// Returns whether the heap is known to be hardened.
    #[inline(always)]
    pub(crate) fn is_hardened(&self) -> bool {
        self.mode() == HeapMode::Hardened
    }

    /// Returns the number of bytes beyond which the heap requests huge pages; `u64::MAX` for never.
    pub(crate) fn huge_above(&self) -> u64 {
        match self.config().huge_pages {
            HugePages::Never => u64::MAX,
            HugePages::Above(bytes) => bytes,
        }
    }

    /// Returns whether new memory refuses huge pages until the heap requests some, even if the
    /// system would make them unasked.
    pub(crate) fn begins_short(&self) -> bool {
        self.huge_above() == u64::MAX || self.config().dense_percent > 100
    }

    /// Returns whether the heap purges when it has grown. It does so if memory comes first or if no
    /// thread purges soon.
    pub(crate) fn makes_up(&self) -> bool {
        let purge_ms = self.purge_ms();
        purge_ms <= SHORT_MS || !self.config().background && purge_ms < u64::MAX
    }

    /// Returns the milliseconds for which freed memory is kept; `u64::MAX` for never returning it.
    pub(crate) fn purge_ms(&self) -> u64 {
        // Relaxed: a number alone.
        self.purge_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn set_purge_ms(&self, purge_ms: u64) {
        self.purge_ms.store(purge_ms, Ordering::Relaxed);
    }

    /// Returns whether blocks that are not freed are reported at the end. Only a checking heap
    /// reports them.
    pub(crate) fn says_leaks(&self) -> bool {
        self.config().checking && self.config().leaks
    }

    /// Returns how the heap reacts to misuse.
    pub(crate) fn on_misuse(&self) -> OnMisuse {
        // Relaxed: a function exists from the program's start.
        let word = self.on_misuse.load(Ordering::Relaxed);
        match word {
            _ if word.is_null() => OnMisuse::Abort,
            _ if ptr::eq(word, OnMisuse::REPORT) => OnMisuse::Report,
            // SAFETY: the word of a function (`OnMisuse::as_ptr`).
            _ => OnMisuse::Call(unsafe { mem::transmute::<*mut (), fn(&str)>(word) }),
        }
    }

    pub(crate) fn set_on_misuse(&self, act: OnMisuse) {
        self.on_misuse.store(act.as_ptr(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use larder_core::sync::AtomicU32;

    use super::*;
    use crate::Larder;

    #[test]
    fn the_first_configuration_stands() {
        let tuning = Tuning::new();
        assert_eq!(tuning.purge_ms(), Config::BALANCED.purge_ms);
        tuning.apply(&Config::MEMORY);
        assert_eq!(tuning.purge_ms(), Config::MEMORY.purge_ms);
        assert!(tuning.config().background);
        tuning.apply(&Config::SPEED);
        assert_eq!(tuning.config().bin_bytes, Config::MEMORY.bin_bytes);
    }

    #[test]
    fn growth_is_made_up_for_where_memory_comes_first_or_no_thread_gives_it_back() {
        let makes_up = |config: &Config| {
            let tuning = Tuning::new();
            tuning.apply(config);
            tuning.makes_up()
        };
        let with = |purge_ms, background| Config {
            purge_ms,
            background,
            ..Config::BALANCED
        };
        assert!(makes_up(&Config::MEMORY));
        assert!(makes_up(&with(0, true)) && makes_up(&with(SHORT_MS, true)));
        assert!(!makes_up(&with(SHORT_MS + 1, true)));
        assert!(makes_up(&with(SHORT_MS + 1, false)));
        assert!(!makes_up(&with(u64::MAX, false)), "nothing goes back");
    }

    #[test]
    fn what_happens_on_misuse_comes_back_from_its_word() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let tuning = Tuning::new();
        assert_eq!(tuning.on_misuse(), OnMisuse::Abort);
        tuning.apply(&Config {
            on_misuse: OnMisuse::Report,
            ..Config::CHECKING
        });
        assert_eq!(tuning.on_misuse(), OnMisuse::Report);
        tuning.set_on_misuse(OnMisuse::Call(|report| {
            TOLD.store(report.len() as u32, Ordering::Relaxed);
        }));
        if let OnMisuse::Call(hook) = tuning.on_misuse() {
            hook("seven..");
        }
        assert_eq!(TOLD.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_checking_heap_is_hardened_and_only_it_says_leaks() {
        for (config, checks, says) in [
            (Config::HARDENED, false, false),
            (Config::CHECKING, true, true),
        ] {
            let tuning = Tuning::new();
            let larder = Larder::checking().with_leaks(true);
            tuning.apply(&Config {
                leaks: larder.0.leaks,
                ..config
            });
            assert!(tuning.is_hardened());
            assert_eq!(
                (tuning.config().checking, tuning.says_leaks()),
                (checks, says)
            );
        }
    }
}
