//! Paged allocators: memory that moves inside one range of addresses.
//!
//! Most cases are scripts in `scripts`, which [`player`] plays.

mod bench;
mod plans;
mod player;
mod random;
mod refusals;
mod scenes;
mod tables;
mod words;

use crate::golden::run;
use player::Player;

#[test]
fn memory_moves_as_in_the_script() {
    run::<Player>("paged/scripts/moves.txt");
}

#[test]
fn blocks_lie_where_the_script_says() {
    run::<Player>("paged/scripts/places.txt");
}

#[test]
fn limits_hold_as_in_the_script() {
    run::<Player>("paged/scripts/limits.txt");
}

#[test]
fn streams_are_kept_in_order_as_in_the_script() {
    run::<Player>("paged/scripts/order.txt");
}

#[test]
fn pins_hold_as_in_the_script() {
    run::<Player>("paged/scripts/pins.txt");
}

#[test]
fn idle_memory_is_released_as_in_the_script() {
    run::<Player>("paged/scripts/release.txt");
}

#[test]
fn layouts_are_backed_as_in_the_script() {
    run::<Player>("paged/scripts/backing.txt");
}

#[test]
fn memory_is_created_in_the_pieces_of_the_script() {
    run::<Player>("paged/scripts/growth.txt");
}

#[test]
fn plans_go_on_as_in_the_script() {
    run::<Player>("paged/scripts/plans.txt");
}

#[test]
fn searches_look_at_as_much_as_the_script_says() {
    run::<Player>("paged/scripts/looks.txt");
}
