//! Conformance with AntMan: the allocator over a device's and the host's memory, the adjuster's sequences A, B and C
//! over it number by number, the effect of each kind of goal, and the difference between ours, which waits for blocks
//! to be freed, and upstream, which clamps the limit to the bytes held.

mod clamp;
mod given_again;
mod goals;
mod pending;
mod range_end;
mod release;
mod sequences;
mod sides;
mod vmem;
