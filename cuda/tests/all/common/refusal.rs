//! One refused call among those that allocators make, and none of the test's own.

use std::cell::Cell;

use larder_cuda::driver::abi::Code;
use larder_cuda::driver::{Rule, StandIn};

/// Refuses one of the calls made inside [`around`](Self::around).
pub(crate) struct Refusal {
    pub(crate) control: &'static StandIn,
    code: Code,
    /// Calls that are still made first; `None` when one was refused.
    left: Cell<Option<u64>>,
}

impl Refusal {
    /// Refuses a call with `code`, after `skip` others.
    pub(crate) fn new(control: &'static StandIn, code: Code, skip: u64) -> Self {
        let left = Cell::new(Some(skip));
        Self {
            control,
            code,
            left,
        }
    }

    /// Refuses nothing.
    pub(crate) fn none(control: &'static StandIn) -> Self {
        Self::new(control, Code::SUCCESS, u64::MAX)
    }

    /// Asks an allocator something, of whose calls one may be refused.
    pub(crate) fn around<R>(&self, ask: impl FnOnce() -> R) -> R {
        if let Some(skip) = self.left.get() {
            self.control
                .fail(Rule::any().after(skip).with(self.code))
                .unwrap();
        }
        let before = self.control.calls(None);
        let answer = ask();
        let calls = self.control.calls(None) - before;
        self.control.clear_failures();
        let left = self.left.get();
        self.left.set(left.and_then(|left| left.checked_sub(calls)));
        answer
    }

    /// Asks an allocator something; says also whether a call of this question was refused.
    pub(crate) fn around_told<R>(&self, ask: impl FnOnce() -> R) -> (R, bool) {
        let before = self.happened();
        let answer = self.around(ask);
        (answer, !before && self.happened())
    }

    /// Returns whether a call was refused.
    pub(crate) fn happened(&self) -> bool {
        self.left.get().is_none()
    }
}
