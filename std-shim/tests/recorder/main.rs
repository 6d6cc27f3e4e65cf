//! The recorder: its traces event by event, its files, and its processes.
//!
//! This program's allocator is not recorded; each child calls a recorder itself, so every event is
//! known. Traces are read as `larder replay` reads them. Whole programs are in `recorder_program`.
//!
//! * `scene` children and their traces · `blocks` calls of an allocator, and allocators below a recorder
//! * `scripts` traces of calls · `files` paths, other processes, descriptors, full resources · `system` threads, forks,
//!   exits and signals
#![allow(clippy::unwrap_used, reason = "tests")]

mod blocks;
#[path = "../common/mod.rs"]
mod common;
mod files;
mod scene;
mod scripts;
mod system;

use std::alloc::System;

use larder::Recorder;

static HEAP: Recorder<System> = Recorder::new(System);

/// Enough events for several writes.
const MANY: usize = 20_000;

fn allocate_many() {
    for _ in 0..MANY {
        blocks::alloc(&HEAP, 24);
    }
}

#[test]
#[ignore = "the other tests start it"]
fn plays_a_part() {
    let Some(part) = scene::part() else {
        return;
    };
    if scripts::play(&part) {
        return;
    }
    let mut parts = files::PARTS.iter().chain(system::PARTS);
    let (_, play) = parts.find(|(name, _)| *name == part).unwrap();
    play();
}
