//! Decorators: their counts, findings and delays, alone and in stacks.

mod conformance;
mod ground;
mod guarded;
mod host;
mod poisoned;
mod quarantined;
mod random;
mod threads;
mod tracked;
mod upstream_cases;
