//! Steps: recognised by their allocations and served from plans.

mod files;
mod player;
mod random;
mod repeats;
mod world;

use crate::golden::run;
use player::Player;

#[test]
fn repeated_steps_are_served_as_in_the_script() {
    run::<Player>("steps/scripts/repeats.txt");
}

#[test]
fn steps_that_differ_are_served_as_in_the_script() {
    run::<Player>("steps/scripts/deviations.txt");
}

#[test]
fn steps_without_a_key_are_guessed_as_in_the_script() {
    run::<Player>("steps/scripts/guesses.txt");
}

#[test]
fn steps_over_pages_come_to_rest_as_in_the_script() {
    run::<Player>("steps/scripts/pages.txt");
}
