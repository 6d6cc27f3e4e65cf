//! Scenes as scripts, with which several cases begin, and the scenes whose plans are refused at every call.

/// The name of each scene and its operations.
const SCENES: [(&str, &str); 9] = [
    // Two layouts of the same memory: three holes, from pages 48, 52 and 55, and then six pages from page 59. The
    // memory is handles of 3, 2 and 1 pages, in this order in both layouts, and idle in the second.
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
    // The second layout of the swing. Four of its pages, at both ends, can be reused; the memory of the place between
    // them is in use elsewhere.
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
    // Cached mappings fill the only hole that is long enough.
    (
        "clearing",
        "pool 12
        alloc a=2 b=1 c=2 d=1
        free a c
        alloc e=4
        free b",
    ),
    // The limit is reached, and two pages at each end are idle.
    (
        "releasing",
        "pool 64 in-place limit 5
        alloc a=2 b=1 c=2
        free a c",
    ),
    // Two holes of two pages, which stream 1 still uses up to events 5 and 6.
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

/// The scenes whose next request needs a plan, and the pages of that request. The plans, in order: create three pages;
/// move two from each hole and create one; reuse four, unmap a place, move one page there and create one; unmap cached
/// mappings and create pages; release one page and create one.
pub(crate) const PLANNED: [(&str, u64); 5] = [
    ("creating", 3),
    ("moving", 5),
    ("waking", 6),
    ("clearing", 4),
    ("releasing", 3),
];
