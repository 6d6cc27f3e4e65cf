//! Sweeps: a scenario runs again and again, and each time another driver call is refused.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use larder_cuda::Context;
use larder_cuda::driver::abi::Code;
use larder_cuda::driver::{Rule, StandIn};

use super::{CODES, DEVICE_BYTES, all_faults, alone, assert_clean, is_swept, ran_in_child};

/// Which calls are refused, and how. Each scenario starts with an empty stand-in, and must leave it empty.
pub(crate) struct Sweep {
    pub(crate) codes: &'static [Code],
    /// Whether each call is refused with each code, and not only with one of them in turn.
    pub(crate) each_code: bool,
    /// The numbers of the calls that are refused; ignored if sweeps refuse every call (`all_faults`).
    pub(crate) places: fn(u64) -> bool,
    pub(crate) times: u64,
    /// The seed of the order of queued work, by call number. With `None` work runs eagerly.
    pub(crate) seed: fn(u64) -> Option<u64>,
}

/// Refuses each call once, with the codes in turn, while work runs eagerly.
pub(crate) const SWEEP: Sweep = Sweep {
    codes: &CODES,
    each_code: false,
    places: |_| true,
    times: 1,
    seed: |_| None,
};

/// Refuses each call once, with a code other than out of memory, while work is deferred in an order drawn from the
/// call's number.
pub(crate) const DEFERRED_SWEEP: Sweep = Sweep {
    codes: &[Code::NOT_PERMITTED],
    each_code: true,
    seed: Some,
    ..SWEEP
};

impl Sweep {
    /// Sweeps over the calls that a scenario makes inside [`Refusal::around`]. There must be at least `least`.
    #[track_caller]
    pub(crate) fn run(&self, least: u64, scenario: impl Fn(&Refusal)) {
        if ran_in_child() {
            return;
        }
        let Some((control, _turn)) = alone() else {
            return;
        };
        for (nth, code) in self.codes.iter().enumerate() {
            let is_refused = |skip: &u64| {
                let is_turn = self.each_code || is_swept(nth, *skip as usize);
                is_turn && ((self.places)(*skip) || all_faults())
            };
            for skip in (0..).filter(is_refused) {
                // Otherwise the stand-in would remember the streams of every run.
                control.reset(2, DEVICE_BYTES);
                match (self.seed)(skip) {
                    Some(seed) => control.schedule_deferred(seed),
                    None => control.schedule_eagerly(),
                }
                let refusal = Refusal {
                    times: self.times,
                    ..Refusal::new(control, *code, skip)
                };
                let run = || {
                    scenario(&refusal);
                    control.schedule_eagerly();
                    assert_clean(control);
                };
                let outcome = catch_unwind(AssertUnwindSafe(run));
                let times = self.times;
                assert!(outcome.is_ok(), "{times} x {code:?} after {skip} calls");
                if !refusal.happened() {
                    assert!(skip >= least, "{skip} calls only");
                    break;
                }
            }
        }
    }
}

/// Refuses one of the calls made inside [`around`](Self::around), and none that the test itself makes.
pub(crate) struct Refusal {
    pub(crate) control: &'static StandIn,
    pub(crate) code: Code,
    pub(crate) times: u64,
    /// Number of calls until the refused one; `None` once a call was refused.
    left: Cell<Option<u64>>,
}

impl Refusal {
    /// Refuses the call after the next `skip` calls, with `code`.
    fn new(control: &'static StandIn, code: Code, skip: u64) -> Self {
        Self {
            control,
            code,
            times: 1,
            left: Cell::new(Some(skip)),
        }
    }

    pub(crate) fn none(control: &'static StandIn) -> Self {
        Self::new(control, Code::SUCCESS, u64::MAX)
    }

    /// Runs `ask`. One of its calls may be refused.
    pub(crate) fn around<R>(&self, ask: impl FnOnce() -> R) -> R {
        if let Some(skip) = self.left.get() {
            let rule = Rule::any().after(skip).times(self.times).with(self.code);
            self.control.fail(rule).unwrap();
        }
        let before = self.control.calls(None);
        let answer = ask();
        let calls = self.control.calls(None) - before;
        self.control.clear_failures();
        let left = self.left.get();
        self.left.set(left.and_then(|left| left.checked_sub(calls)));
        answer
    }

    /// Runs `ask` as [`around`](Self::around) does, and also returns whether one of its calls was refused.
    pub(crate) fn around_told<R>(&self, ask: impl FnOnce() -> R) -> (R, bool) {
        let before = self.happened();
        let answer = self.around(ask);
        (answer, !before && self.happened())
    }

    /// Runs `ask`, which may fail only because of a refusal, and after a failure once more without one.
    #[track_caller]
    pub(crate) fn at_last<R, E: std::fmt::Display>(&self, ask: impl Fn() -> Result<R, E>) -> R {
        match self.around(&ask) {
            Ok(answer) => answer,
            Err(error) => {
                assert!(self.happened(), "{error}");
                ask().unwrap_or_else(|error| panic!("once more: {error}"))
            }
        }
    }

    /// Runs `ask`, which must return the expected bytes, or an error if a call was refused. Waits for all work.
    #[track_caller]
    pub(crate) fn heard_of(
        &self,
        context: &Context,
        ask: impl FnOnce() -> Result<Vec<u8>, Box<dyn std::error::Error>>,
        expected: &[u8],
    ) {
        match self.around(ask) {
            Ok(bytes) => {
                assert_eq!(bytes, expected);
                assert_eq!(self.control.findings(), Vec::<String>::new());
            }
            Err(error) => assert!(self.happened(), "{error}"),
        }
        let _ = context.cudarc().check_err();
        self.control.clear_findings();
        context.synchronize().unwrap();
    }

    pub(crate) fn happened(&self) -> bool {
        self.left.get().is_none()
    }
}
