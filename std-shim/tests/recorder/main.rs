//! A recorder's trace, its file and its process, event by event.
//!
//! This program's own allocator is not recorded: each child calls a recorder itself, so every event is known. The
//! reader of traces is the one of `larder replay`. Whole programs are in `recorder_program`.
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

/// Events enough for several writes.
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
