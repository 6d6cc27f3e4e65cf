//! Decorators: what they count, find and keep back, alone and in stacks.

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
