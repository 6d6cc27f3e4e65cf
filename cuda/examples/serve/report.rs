//! [`Report`]: the results of a server.

/// The end of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Served whole.
    Served {
        step: u32,
    },
    Refused {
        step: u32,
    },
}

/// Results of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The end of each request.
    pub(crate) outcomes: Vec<Option<Outcome>>,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    /// Sequences that lost blocks.
    pub(crate) preempted: u64,
    /// Tokens of the answers that were served whole.
    pub(crate) tokens: u64,
    /// These tokens at the time of the first refusal.
    pub(crate) tokens_before_refusal: Option<u64>,
    /// Tokens whose keys and values are computed again.
    pub(crate) wasted_tokens: u64,
    /// Blocks copied to other places.
    pub(crate) moved: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) driver_calls: u64,
    /// Requests that were refused here, and served with fixed halves.
    pub(crate) lost: u64,
    /// Requests that were served here, and at an earlier step with fixed halves.
    pub(crate) later: u64,
}

impl Report {
    /// Counts the requests that are worse off than with fixed halves.
    pub(crate) fn compare(&mut self, split: &Self) {
        use Outcome::{Refused, Served};
        for ends in self.outcomes.iter().zip(&split.outcomes) {
            match ends {
                (Some(Refused { .. }), Some(Served { .. })) => self.lost += 1,
                (Some(Served { step }), Some(Served { step: before })) if step > before => {
                    self.later += 1;
                }
                _ => {}
            }
        }
    }
}
