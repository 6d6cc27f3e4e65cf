//! Scenes with which several cases begin, as scripts, and those whose plan is refused at every call.

/// Each scene's name and what happens in it.
const SCENES: [(&str, &str); 9] = [
    // Two layouts that share their memory: three holes, from page 48, 52 and 55, and six pages from page 59. It is
    // made of handles of 3, 2 and 1 pages, in this order in both, and idle in the second.
    (
        "swing",
        "pool 256
        pieces ballast=48 three=3 a=1 two=2 b=1 one=1 c=1 spare=1 last=1
        free three two one
        alloc six=6 behind=4
        free six",
    ),
    ("creating", "pool 64"),
    // Two holes of two pages.
    (
        "moving",
        "pool 64
        alloc a=2 b=1 c=2 d=1
        free a c",
    ),
    // The second layout of the swing: four of its pages are reused, at both ends; a place between them has memory
    // in use.
    (
        "waking",
        "pool 256
        pieces ballast=48 three=3 a=1 two=2 b=1 one=1 c=1 spare=1 last=1
        free three two one
        alloc six=6 behind=4
        free six
        alloc three=3 two=2 one=1
        free three one spare",
    ),
    // The only hole that is long enough is full of cached mappings.
    (
        "clearing",
        "pool 12
        alloc a=2 b=1 c=2 d=1
        free a c
        alloc e=4
        free b",
    ),
    // At the limit, with two idle pages at either end.
    (
        "releasing",
        "pool 64 in-place limit 5
        alloc a=2 b=1 c=2
        free a c",
    ),
    // Two holes of two pages, which work on stream 1 still uses up to events 5 and 6.
    (
        "pending",
        "pool 64
        alloc a=2 b=1 c=2 d=1 on 1
        free a after 1:5
        free c after 1:6",
    ),
    // Two holes of two pages, the first one pinned.
    (
        "pinned",
        "pool 64
        alloc a=2 b=1 c=2 d=1
        pin a
        free a c",
    ),
    // Idle pieces of 3, 2 and 1 pages, each in a hole of its own.
    (
        "pieces",
        "pool 256
        pieces ballast=48 three=3 a=1 two=2 b=1 one=1 c=1
        free three two one",
    ),
];

pub(crate) fn scene(name: &str) -> &'static str {
    let found = SCENES.iter().find(|scene| scene.0 == name);
    found.unwrap_or_else(|| panic!("no scene is {name}")).1
}

/// The scenes whose next request needs a plan, and the pages that it asks for: the plan creates three; moves two
/// from each hole and creates one; reuses four, unmaps a place, moves one there and creates one; unmaps what is
/// cached and creates; releases one and creates one.
pub(crate) const PLANNED: [(&str, u64); 5] = [
    ("creating", 3),
    ("moving", 5),
    ("waking", 6),
    ("clearing", 4),
    ("releasing", 3),
];
