//! The options of the heap. A program sets them in the constant that is its allocator; a user sets
//! them in the environment.
//!
//! [`options!`] has a row for each option; `options` has the methods with which a program sets
//! them. The first call that a thread's cache cannot serve makes its configuration that of the
//! process ([`Tuning::apply`]). The program may change the delay and the reaction to misuse later.

#[cfg(unix)]
mod environment;
mod tuning;

use core::ptr;
use core::time::Duration;

pub(crate) use tuning::{HeapMode, Tuning};

/// The condition for requesting huge pages, where the system grants them on request.
///
/// Huge pages make first touches several times cheaper, but one touched byte makes the whole huge
/// page resident. In a virtual machine whose host takes free memory back, a huge page that the host
/// must find first can cost more than the 512 pages that it replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// Never requests huge pages.
    Never,
    /// Requests huge pages for memory beyond this many bytes of the heap, and only while most of
    /// the heap's memory has really been touched.
    Above(u64),
}

/// How a [hardened](crate::Larder::hardened) or [checking](crate::Larder::checking) heap reacts to
/// misuse.
#[derive(Clone, Copy, Debug)]
pub enum OnMisuse {
    /// Prints the report on standard error, and ends the process.
    Abort,
    /// Prints the report on standard error, and lets the program go on: a free or resize that
    /// cannot be right does nothing; a block is still freed if the program wrote outside of it.
    Report,
    /// Passes the report as text to the function, and lets the program go on when the function
    /// returns. The function may allocate: no lock of the heap is held while it runs. If it panics,
    /// the process ends, because an allocator must not unwind.
    Call(fn(&str)),
}

impl PartialEq for OnMisuse {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.as_ptr(), other.as_ptr())
    }
}

impl Eq for OnMisuse {}

impl OnMisuse {
    /// The word that stands for [`Report`](Self::Report): an address at which no function lies.
    const REPORT: *mut () = ptr::without_provenance_mut(1);

    /// Returns this as one word: null for [`Abort`](Self::Abort).
    fn as_ptr(self) -> *mut () {
        match self {
            Self::Abort => ptr::null_mut(),
            Self::Report => Self::REPORT,
            Self::Call(hook) => hook as *mut (),
        }
    }
}

/// Defines [`Config`] by a table. A row has an option, its value in [`Config::BALANCED`], and, if
/// the environment may set the option, the parser of its values, the variable and a description of
/// the values.
macro_rules! options {
    ($(
        $(#[$doc:meta])*
        $name:ident: $type:ty = $balanced:expr $(, $parse:ident $variable:literal $values:literal)?;
    )+) => {
        /// The configuration of the process heap; see [`Larder`](crate::Larder) for the
        /// configurations and the options of each.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) struct Config {
            $($(#[$doc])* pub(crate) $name: $type,)+
        }

        impl Config {
            /// Balances time and memory.
            pub(crate) const BALANCED: Self = Self { $($name: $balanced,)+ };
        }

        /// The variables of the environment that set an option.
        #[cfg(unix)]
        const VARIABLES: &[environment::Variable] = &[$($(environment::Variable {
            name: $variable,
            values: $values,
            set: |config, value| {
                config.$name = environment::$parse(value)?;
                Some(())
            },
        },)?)+];
    };
}

options! {
    /// Milliseconds for which freed memory is kept; `u64::MAX` for never returning it.
    purge_ms: u64 = 1000, millis "LARDER_PURGE_AFTER" "milliseconds, or never";
    /// Whether the heap may have a thread that purges.
    background: bool = true, yes_or_no "LARDER_BACKGROUND_PURGE" "yes or no";
    /// When huge pages are requested. The variable takes a size; a plain number is in MiB.
    huge_pages: HugePages = HugePages::Above(8 << 20),
        huge_pages "LARDER_HUGE_PAGES" "a size such as 64MiB, or never";
    /// Percentage of the committed memory that must be resident for huge pages if an eighth of it
    /// is small blocks. Above 100 there are no huge pages.
    dense_percent: u32 = 75;
    /// Maximum number of free bytes of one class that a thread caches.
    bin_bytes: u32 = 32 << 10;
    /// Whether the environment may change the configuration.
    environment: bool = false;
    /// Whether every block is recorded by its address and checked.
    hardened: bool = false;
    /// Whether a hardened heap checks more, and records stacks.
    checking: bool = false;
    on_misuse: OnMisuse = OnMisuse::Abort, on_misuse "LARDER_ON_MISUSE" "abort or report";
    /// Whether blocks that are not freed are reported when the process ends.
    leaks: bool = false, yes_or_no "LARDER_LEAKS" "yes or no";
    /// Whether the heap's statistics are reported when the process ends.
    stats: bool = false, yes_or_no "LARDER_STATS" "yes or no";
    /// Number of frames recorded of each stack.
    stack_frames: u32 = 16, stack_frames "LARDER_STACK_FRAMES" "a number up to 32";
    /// One block in this many has guard pages; 0 for none.
    guard_one_in: u32 = 0, one_in "LARDER_GUARD" "a number above 0, or never";
    /// Whether a fault at a guard page is explained.
    explains_faults: bool = false, yes_or_no "LARDER_GUARD_FAULTS" "yes or no";
    /// Set for calls from C++'s `new`.
    by_new: bool = false;
}

impl Config {
    /// Puts time first.
    pub(crate) const SPEED: Self = Self {
        purge_ms: 10_000,
        huge_pages: HugePages::Above(2 << 20),
        dense_percent: 50,
        bin_bytes: 64 << 10,
        ..Self::BALANCED
    };

    /// Puts memory first. No huge page is full enough in a heap of mostly small blocks.
    pub(crate) const MEMORY: Self = Self {
        purge_ms: 50,
        dense_percent: 101,
        bin_bytes: 8 << 10,
        ..Self::BALANCED
    };

    /// Puts safety first: misuse of the heap is detected.
    pub(crate) const HARDENED: Self = Self {
        hardened: true,
        ..Self::BALANCED
    };

    /// Detects misuse, and reports it with stacks.
    pub(crate) const CHECKING: Self = Self {
        checking: true,
        ..Self::HARDENED
    };

    /// Maximum number of frames recorded of a stack.
    pub(crate) const MAX_STACK_FRAMES: u32 = 32;

    /// Returns this configuration with the changes that the environment requests, if this
    /// configuration allows any; `None` if the environment cannot be read yet.
    fn with_environment(self) -> Option<Self> {
        #[cfg(unix)]
        if self.environment {
            return environment::read(self);
        }
        Some(self)
    }

    /// Returns this configuration with the tuning of `other`. Options that are not part of the
    /// tuning keep their values.
    #[cfg(unix)]
    const fn tuned_as(self, other: Self) -> Self {
        Self {
            purge_ms: other.purge_ms,
            huge_pages: other.huge_pages,
            dense_percent: other.dense_percent,
            bin_bytes: other.bin_bytes,
            hardened: other.hardened,
            checking: other.checking,
            ..self
        }
    }

    /// Converts a duration to milliseconds, rounded up so that only zero is zero.
    pub(crate) const fn millis(duration: Duration) -> u64 {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        if millis > u64::MAX as u128 {
            u64::MAX
        } else {
            millis as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Larder;

    /// A method that users call, and the change that it stands for.
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

    #[cfg(unix)]
    #[test]
    fn the_documentation_has_a_row_for_each_variable_and_no_other() {
        let guide = concat!(
            include_str!("../../docs/guide/src/malloc.md"),
            include_str!("../../docs/guide/src/misuse.md")
        );
        for text in [include_str!("options.rs"), guide] {
            let cells = text.lines().filter_map(|line| {
                let row = line.trim_start_matches(['/', ' ']).strip_prefix("| `")?;
                let name = row.split('`').next()?;
                (name.starts_with("LARDER_") && !name.contains('=')).then_some(name)
            });
            let mut documented: Vec<&str> = cells.collect();
            let known = VARIABLES.iter().map(|variable| variable.name);
            let mut known: Vec<&str> = known.chain(["LARDER_MODE"]).collect();
            documented.sort_unstable();
            known.sort_unstable();
            assert_eq!(documented, known);
        }
    }
}
