//! Decorators: their counts, findings and delays, alone and in stacks.

mod conformance;
mod every_byte;
mod ground;
mod host;
mod kinds;
mod player;
mod random;
mod threads;
mod tracked;
mod upstream_cases;

use crate::golden::run;
use player::Player;

#[test]
fn guards_do_as_in_the_script() {
    run::<Player>("decorate/scripts/guarded.txt");
}

#[test]
fn freed_blocks_wait_as_in_the_script() {
    run::<Player>("decorate/scripts/quarantined.txt");
}

#[test]
fn blocks_are_reset_as_in_the_script() {
    run::<Player>("decorate/scripts/poisoned.txt");
}

#[test]
fn blocks_are_counted_as_in_the_script() {
    run::<Player>("decorate/scripts/tracked.txt");
}
