//! Conformance with AntMan: the allocator over a device's and the host's memory, the adjuster's sequences
//! A, B and C over it number by number, what becomes of each kind of goal, and how ours, which waits for
//! blocks to come back, differs from upstream, which clamps the limit to what is held.

mod clamp;
mod given_again;
mod goals;
mod pending;
mod range_end;
mod release;
mod sequences;
mod sides;
mod vmem;
