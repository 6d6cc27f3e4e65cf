//! [`Config`]: what a program chooses about its heap, in the constant that is its allocator.
//!
//! The first call that needs more than a thread has at hand hands the configuration to the process
//! ([`Tuning::apply`]); from then on it stands. Whoever acts on it reads one relaxed number.

#[cfg(unix)]
mod environment;

use core::time::Duration;
use core::{mem, ptr};

use larder_core::Locked;
use larder_core::sync::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::thread::wait::Sleep;

/// When memory is asked for in huge pages, where the system grants them on request.
///
/// They make first touches several times cheaper, and whoever touches one byte of one has all of it. In a
/// virtual machine whose host takes free memory back, one that the host must find first can cost more
/// than the 512 pages it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// Never.
    Never,
    /// For what the heap takes beyond so many bytes, and only while most of what it has taken so far
    /// was really touched.
    Above(u64),
}

/// A program that keeps freed memory for so long at most wants little memory first.
const SHORT_MS: u64 = 100;

/// What happens when the heap finds that the program misused it, where it is [hardened](crate::Larder::hardened) or
/// [checking](crate::Larder::checking).
#[derive(Clone, Copy, Debug)]
pub enum OnMisuse {
    /// The report goes to standard error, and the process ends.
    Abort,
    /// The report goes to standard error, and the program goes on: a free or resize that cannot be right does
    /// nothing, a block that was written where it must not be is freed all the same.
    Report,
    /// The function gets the report as text, and the program goes on when it returns. It may allocate. No lock of the
    /// heap is held meanwhile. If it panics the process ends, as an allocator must not unwind.
    Call(fn(&str)),
}

impl PartialEq for OnMisuse {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.as_ptr(), other.as_ptr())
    }
}

impl Eq for OnMisuse {}

impl OnMisuse {
    /// Where no function lies, for [`Report`](Self::Report).
    const REPORT: *mut () = ptr::without_provenance_mut(1);

    /// As one word: null for [`Abort`](Self::Abort).
    fn as_ptr(self) -> *mut () {
        match self {
            Self::Abort => ptr::null_mut(),
            Self::Report => Self::REPORT,
            Self::Call(hook) => hook as *mut (),
        }
    }
}

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

/// What the memory of the process is tuned for; see [`Larder`](crate::Larder) for those that
/// exist and what may be changed in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    /// Milliseconds that freed memory is kept; `u64::MAX` for ever.
    pub(crate) purge_ms: u64,
    /// Whether a thread of the heap's own may do the purging.
    pub(crate) background: bool,
    pub(crate) huge_pages: HugePages,
    /// From how many resident percent of what is held on, where an eighth of that is small blocks; above 100 never.
    pub(crate) dense_percent: u32,
    /// Free bytes of one class that a thread keeps at hand.
    pub(crate) bin_bytes: u32,
    /// Whether the environment has its say.
    pub(crate) environment: bool,
    /// Whether every block is known and looked at.
    pub(crate) hardened: bool,
    /// Whether that looks at more, and keeps the stacks.
    pub(crate) checking: bool,
    pub(crate) on_misuse: OnMisuse,
    /// Frames that are kept of each stack.
    pub(crate) stack_frames: u32,
    /// Whether what is not freed is said at the end.
    pub(crate) leaks: bool,
    /// Whether it is said at the end what the heap holds.
    pub(crate) stats: bool,
    /// Of so many blocks one has guard pages; 0 for none.
    pub(crate) guard_one_in: u32,
    /// Whether a fault at a guard page is explained.
    pub(crate) explains_faults: bool,
    /// Whether C++'s `new` asks: of the caller, not of the process.
    pub(crate) by_new: bool,
}

impl Config {
    /// Time and memory in balance.
    pub(crate) const BALANCED: Self = Self {
        purge_ms: 1000,
        background: true,
        huge_pages: HugePages::Above(8 << 20),
        dense_percent: 75,
        bin_bytes: 32 << 10,
        environment: false,
        hardened: false,
        checking: false,
        on_misuse: OnMisuse::Abort,
        stack_frames: 16,
        leaks: false,
        stats: false,
        guard_one_in: 0,
        explains_faults: false,
        by_new: false,
    };

    /// Time first.
    pub(crate) const SPEED: Self = Self {
        purge_ms: 10_000,
        huge_pages: HugePages::Above(2 << 20),
        dense_percent: 50,
        bin_bytes: 64 << 10,
        ..Self::BALANCED
    };

    /// Memory first. Of a heap that is small blocks mostly no huge page is full enough.
    pub(crate) const MEMORY: Self = Self {
        purge_ms: 50,
        dense_percent: 101,
        bin_bytes: 8 << 10,
        ..Self::BALANCED
    };

    /// Safety first: misuse of the heap is found.
    pub(crate) const HARDENED: Self = Self {
        hardened: true,
        ..Self::BALANCED
    };

    /// Finding misuse: says where it comes from, too.
    pub(crate) const CHECKING: Self = Self {
        checking: true,
        ..Self::HARDENED
    };

    /// No more frames are kept of a stack.
    pub(crate) const MAX_STACK_FRAMES: u32 = 32;

    const fn mode(&self) -> Mode {
        match (self.hardened, self.guard_one_in) {
            (true, _) => Mode::Hardened,
            (false, 1..) => Mode::Guarded,
            (false, 0) => Mode::Plain,
        }
    }

    /// With what the environment says, if it has its say; `None` if it cannot be read yet.
    fn with_environment(self) -> Option<Self> {
        #[cfg(unix)]
        if self.environment {
            return environment::read(self);
        }
        Some(self)
    }

    /// A duration in milliseconds, rounded up so that only zero is zero.
    pub(crate) const fn millis(duration: Duration) -> u64 {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        if millis > u64::MAX as u128 {
            u64::MAX
        } else {
            millis as u64
        }
    }
}

/// The configuration of a process, once it is known; [`Config::BALANCED`] before.
pub(crate) struct Tuning {
    purge_ms: AtomicU64,
    /// `u64::MAX` for never.
    huge_above: AtomicU64,
    dense_percent: AtomicU32,
    bin_bytes: AtomicU32,
    /// 1 known, 2 background, 8 allocated before it was known, 16 checking, 32 leaks, 64 explains
    /// faults, 128 statistics.
    flags: AtomicU32,
    /// A [`Mode`].
    mode: AtomicU8,
    guard_one_in: AtomicU32,
    stack_frames: AtomicU32,
    /// An [`OnMisuse`] as one word.
    on_misuse: AtomicPtr<()>,
    /// How often it was asked for in vain.
    applying: Locked<u32, Sleep>,
}

const KNOWN: u32 = 1;
const BACKGROUND: u32 = 2;
const EARLY: u32 = 8;
const CHECKING: u32 = 16;
const LEAKS: u32 = 32;
const EXPLAINS_FAULTS: u32 = 64;
const STATS: u32 = 128;
/// Nobody allocates so often before the C library begins.
const MAX_IN_VAIN: u32 = 100;

impl Tuning {
    pub(crate) const fn new() -> Self {
        let config = Config::BALANCED;
        Self {
            purge_ms: AtomicU64::new(config.purge_ms),
            huge_above: AtomicU64::new(huge_above(&config)),
            dense_percent: AtomicU32::new(config.dense_percent),
            bin_bytes: AtomicU32::new(config.bin_bytes),
            flags: AtomicU32::new(flags(&config)),
            mode: AtomicU8::new(Mode::Plain as u8),
            guard_one_in: AtomicU32::new(config.guard_one_in),
            stack_frames: AtomicU32::new(config.stack_frames),
            on_misuse: AtomicPtr::new(ptr::null_mut()),
            applying: Locked::new(0),
        }
    }

    /// Makes `config` the process's, if none is yet.
    #[inline]
    pub(crate) fn apply(&self, config: &Config) {
        // Acquire: whoever sees it known sees all of it.
        if self.flags.load(Ordering::Acquire) & KNOWN == 0 {
            self.apply_first(config);
        }
    }

    #[cold]
    fn apply_first(&self, config: &Config) {
        self.applying.with(|in_vain| {
            if self.flags.load(Ordering::Relaxed) & KNOWN != 0 {
                return;
            }
            let mut config = match config.with_environment() {
                Some(config) => config,
                // Asked before the C library knew its environment, the next who asks tries again.
                None if *in_vain < MAX_IN_VAIN => {
                    *in_vain += 1;
                    self.flags.fetch_or(EARLY, Ordering::Relaxed);
                    return;
                }
                // The program has taken its environment away.
                None => *config,
            };
            self.purge_ms.store(config.purge_ms, Ordering::Relaxed);
            self.huge_above
                .store(huge_above(&config), Ordering::Relaxed);
            self.dense_percent
                .store(config.dense_percent, Ordering::Relaxed);
            self.bin_bytes.store(config.bin_bytes, Ordering::Relaxed);
            let early = self.flags.load(Ordering::Relaxed) & EARLY;
            // A hardened heap looks at every block, and a thread that allocated before would not look (LOCAL3).
            if config.hardened || early != 0 {
                config.guard_one_in = 0;
            }
            self.guard_one_in
                .store(config.guard_one_in, Ordering::Relaxed);
            self.mode.store(config.mode() as u8, Ordering::Relaxed);
            let frames = config.stack_frames.min(Config::MAX_STACK_FRAMES);
            self.stack_frames.store(frames, Ordering::Relaxed);
            self.set_on_misuse(config.on_misuse);
            // Release: see apply.
            self.flags
                .store(flags(&config) | early | KNOWN, Ordering::Release);
        });
    }

    /// Milliseconds that freed memory is kept; `u64::MAX` for ever.
    pub(crate) fn purge_ms(&self) -> u64 {
        self.purge_ms.load(Ordering::Relaxed)
    }

    /// Committed bytes from which on huge pages are asked for; `u64::MAX` for never.
    pub(crate) fn huge_above(&self) -> u64 {
        self.huge_above.load(Ordering::Relaxed)
    }

    /// How many percent of what is held must be resident then, where that is small blocks mostly.
    pub(crate) fn dense_percent(&self) -> u32 {
        self.dense_percent.load(Ordering::Relaxed)
    }

    /// Whether memory is to have no huge pages until the heap asks for some, even if the system makes them by itself.
    pub(crate) fn begins_short(&self) -> bool {
        self.huge_above() == u64::MAX || self.dense_percent() > 100
    }

    /// Free bytes of one class that a thread keeps at hand.
    pub(crate) fn bin_bytes(&self) -> u32 {
        self.bin_bytes.load(Ordering::Relaxed)
    }

    /// Whether idle memory goes back when the heap has grown: where memory comes first, and where no thread does it
    /// soon.
    pub(crate) fn makes_up(&self) -> bool {
        self.has_short_delay() || !self.background() && self.purge_ms() < u64::MAX
    }

    /// Whether memory comes first.
    pub(crate) fn has_short_delay(&self) -> bool {
        self.purge_ms() <= SHORT_MS
    }

    /// Whether the configuration is known.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & KNOWN != 0
    }

    /// Whether the heap is known to be hardened.
    #[inline(always)]
    pub(crate) fn is_hardened(&self) -> bool {
        self.mode() == Mode::Hardened
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

    /// Whether the heap is known to be checking.
    pub(crate) fn is_checking(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & CHECKING != 0
    }

    /// Whether what is not freed is said at the end.
    pub(crate) fn says_leaks(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & (CHECKING | LEAKS) == CHECKING | LEAKS
    }

    /// Whether it is said at the end what the heap holds.
    pub(crate) fn says_stats(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & STATS != 0
    }

    /// Of so many blocks one has guard pages; 0 for none.
    pub(crate) fn guard_one_in(&self) -> u32 {
        self.guard_one_in.load(Ordering::Relaxed)
    }

    /// Frames that are kept of each stack.
    pub(crate) fn stack_frames(&self) -> usize {
        self.stack_frames.load(Ordering::Relaxed) as usize
    }

    /// Whether a fault at a guard page is explained.
    pub(crate) fn explains_faults(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & EXPLAINS_FAULTS != 0
    }

    /// What happens when misuse is found.
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

    /// Whether blocks may have been allocated before the configuration was known.
    pub(crate) fn had_early_blocks(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & EARLY != 0
    }

    /// Whether a thread of the heap's own may purge.
    pub(crate) fn background(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & BACKGROUND != 0
    }
}

const fn huge_above(config: &Config) -> u64 {
    match config.huge_pages {
        HugePages::Never => u64::MAX,
        HugePages::Above(bytes) => bytes,
    }
}

const fn flags(config: &Config) -> u32 {
    let background = if config.background { BACKGROUND } else { 0 };
    let checking = if config.checking { CHECKING } else { 0 };
    let leaks = if config.leaks { LEAKS } else { 0 };
    let stats = if config.stats { STATS } else { 0 };
    let explains = if config.explains_faults {
        EXPLAINS_FAULTS
    } else {
        0
    };
    background | checking | leaks | stats | explains
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Larder;

    #[test]
    fn the_first_configuration_stands() {
        let tuning = Tuning::new();
        assert_eq!(tuning.purge_ms(), Config::BALANCED.purge_ms);
        tuning.apply(&Config::MEMORY);
        assert_eq!(tuning.purge_ms(), Config::MEMORY.purge_ms);
        assert!(tuning.background());
        tuning.apply(&Config::SPEED);
        assert_eq!(tuning.bin_bytes(), Config::MEMORY.bin_bytes);
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
            assert_eq!((tuning.is_checking(), tuning.says_leaks()), (checks, says));
        }
    }

    /// What a choice is called by users, and what it stands for.
    type Choice = (fn(Larder) -> Larder, fn(&mut Config));

    const CHOICES: [Choice; 9] = [
        (
            |larder| larder.with_stack_frames(3),
            |config| config.stack_frames = 3,
        ),
        (
            |larder| larder.with_leaks(true),
            |config| config.leaks = true,
        ),
        (
            |larder| larder.with_stats(true),
            |config| config.stats = true,
        ),
        (
            |larder| larder.with_guard_pages(9),
            |config| config.guard_one_in = 9,
        ),
        (
            |larder| larder.with_fault_reports(true),
            |config| config.explains_faults = true,
        ),
        (Larder::by_new, |config| config.by_new = true),
        (
            |larder| larder.with_background_purge(false),
            |config| config.background = false,
        ),
        (
            |larder| larder.with_purge_after(Duration::from_millis(5)),
            |config| config.purge_ms = 5,
        ),
        (
            |larder| larder.with_huge_pages(HugePages::Never),
            |config| config.huge_pages = HugePages::Never,
        ),
    ];

    #[test]
    fn each_choice_changes_its_part_of_the_configuration() {
        for (larder, config) in [
            (Larder::new(), Config::BALANCED),
            (Larder::speed(), Config::SPEED),
            (Larder::memory(), Config::MEMORY),
            (Larder::hardened(), Config::HARDENED),
            (Larder::checking(), Config::CHECKING),
        ] {
            assert_eq!(larder.0, config);
            for (choose, change) in CHOICES {
                let mut expected = config;
                change(&mut expected);
                assert_eq!(choose(larder).0, expected);
                assert_ne!(expected, config);
            }
        }
        assert_eq!(Larder::default().0, Config::BALANCED);
    }

    #[test]
    fn only_zero_is_no_delay() {
        assert_eq!(Config::millis(Duration::ZERO), 0);
        assert_eq!(Config::millis(Duration::from_nanos(1)), 1);
        assert_eq!(Config::millis(Duration::from_millis(5)), 5);
        assert_eq!(Config::millis(Duration::MAX), u64::MAX);
    }
}
