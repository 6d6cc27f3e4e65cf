//! [`Tuning`]: the configuration of a process.

use core::cell::UnsafeCell;
use core::mem;
use core::ptr;

use larder_core::Locked;
use larder_core::sync::{AtomicPtr, AtomicU8, Ordering};

use super::{Config, HugePages, OnMisuse};
use crate::thread::wait::Sleep;

/// A heap that keeps freed memory for so long at most puts memory first.
const SHORT_MS: u64 = 100;
/// More allocations than any program makes before the C library begins.
const MAX_IN_VAIN: u32 = 100;

/// Which blocks a heap looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Mode {
    /// None.
    Plain,
    /// Those that have guard pages.
    Guarded,
    /// All: the heap is hardened.
    Hardened,
}

/// The configuration of a process, once it is known; [`Config::BALANCED`] before.
pub(crate) struct Tuning {
    /// Written once, before `known` is.
    config: UnsafeCell<Config>,
    /// 1 once the configuration is known.
    known: AtomicU8,
    /// 1 once it was asked for in vain, so that blocks may have been allocated before it was known.
    early: AtomicU8,
    /// A [`Mode`].
    mode: AtomicU8,
    /// An [`OnMisuse`] as one word.
    on_misuse: AtomicPtr<()>,
    /// How often the configuration was asked for in vain.
    applying: Locked<u32, Sleep>,
}

// SAFETY: `config` is written once, under the lock `applying`, before `known` says so; nobody reads
// it earlier.
unsafe impl Sync for Tuning {}

impl Tuning {
    pub(crate) const fn new() -> Self {
        Self {
            config: UnsafeCell::new(Config::BALANCED),
            known: AtomicU8::new(0),
            early: AtomicU8::new(0),
            mode: AtomicU8::new(Mode::Plain as u8),
            on_misuse: AtomicPtr::new(ptr::null_mut()),
            applying: Locked::new(0),
        }
    }

    /// Makes `config` the process's, if none is yet.
    #[inline]
    pub(crate) fn apply(&self, config: &Config) {
        // Acquire: whoever sees it known sees all of it.
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
                // Asked before the C library knew its environment, the next who asks tries again.
                None if *in_vain < MAX_IN_VAIN => {
                    *in_vain += 1;
                    self.early.store(1, Ordering::Relaxed);
                    return;
                }
                // The program has taken its environment away.
                None => *config,
            };
            // A hardened heap looks at every block, and a thread that allocated before would not
            // look (LOCAL3).
            if config.hardened || self.had_early_blocks() {
                config.guard_one_in = 0;
            }
            config.stack_frames = config.stack_frames.min(Config::MAX_STACK_FRAMES);
            let mode = match (config.hardened, config.guard_one_in) {
                (true, _) => Mode::Hardened,
                (false, 1..) => Mode::Guarded,
                (false, 0) => Mode::Plain,
            };
            self.mode.store(mode as u8, Ordering::Relaxed);
            self.set_on_misuse(config.on_misuse);
            // SAFETY: nobody reads it before it is known, and the lock lets one thread write.
            unsafe { *self.config.get() = config };
            // Release: see `apply`.
            self.known.store(1, Ordering::Release);
        });
    }

    /// The configuration: [`Config::BALANCED`] as long as it is not known.
    pub(crate) fn config(&self) -> &Config {
        // Acquire: the configuration is written.
        match self.known.load(Ordering::Acquire) {
            0 => &Config::BALANCED,
            // SAFETY: written before it was known, and never again.
            _ => unsafe { &*self.config.get() },
        }
    }

    /// Whether the configuration is known.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed) != 0
    }

    /// Whether blocks may have been allocated before the configuration was known.
    pub(crate) fn had_early_blocks(&self) -> bool {
        self.early.load(Ordering::Relaxed) != 0
    }

    /// The heap's mode: [`Mode::Plain`] as long as it is not known.
    #[inline(always)]
    pub(crate) fn mode(&self) -> Mode {
        // Relaxed: whoever holds a block of a hardened heap, or one with guard pages, got it from
        // somebody who knew.
        let mode = self.mode.load(Ordering::Relaxed);
        // SAFETY: only modes are written there, which are bytes.
        unsafe { mem::transmute::<u8, Mode>(mode) }
    }

    /// The heap's mode, by `config` if that is the first.
    #[inline(always)]
    pub(crate) fn mode_for(&self, config: &Config) -> Mode {
        self.apply(config);
        self.mode()
    }

    /// Whether the heap is known to be hardened.
    #[inline(always)]
    pub(crate) fn is_hardened(&self) -> bool {
        self.mode() == Mode::Hardened
    }

    /// Bytes beyond which huge pages are asked for; `u64::MAX` for never.
    pub(crate) fn huge_above(&self) -> u64 {
        match self.config().huge_pages {
            HugePages::Never => u64::MAX,
            HugePages::Above(bytes) => bytes,
        }
    }

    /// Whether memory gets no huge pages until the heap asks for some, even if the system makes
    /// them by itself.
    pub(crate) fn begins_short(&self) -> bool {
        self.huge_above() == u64::MAX || self.config().dense_percent > 100
    }

    /// Whether idle memory goes back when the heap has grown: where memory comes first, and where
    /// no thread does it soon.
    pub(crate) fn makes_up(&self) -> bool {
        let config = self.config();
        self.has_short_delay() || !config.background && config.purge_ms < u64::MAX
    }

    /// Whether the heap puts memory first.
    pub(crate) fn has_short_delay(&self) -> bool {
        self.config().purge_ms <= SHORT_MS
    }

    /// Whether blocks that are not freed are reported at the end: only a checking heap knows them.
    pub(crate) fn says_leaks(&self) -> bool {
        self.config().checking && self.config().leaks
    }

    /// How the heap reacts to misuse.
    pub(crate) fn on_misuse(&self) -> OnMisuse {
        // Relaxed: a function is there from the program's start.
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
        assert_eq!(tuning.config().purge_ms, Config::BALANCED.purge_ms);
        tuning.apply(&Config::MEMORY);
        assert_eq!(tuning.config().purge_ms, Config::MEMORY.purge_ms);
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
