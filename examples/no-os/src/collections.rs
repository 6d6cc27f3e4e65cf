//! The collections of `alloc`, filled, changed, checked and dropped.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;

/// The number of entries in each collection.
const MANY: u32 = 500;

/// Runs everything; `full` is called while all collections are alive.
pub fn run(full: impl FnOnce()) {
    let squares: Vec<u64> = (0..u64::from(MANY)).map(|number| number * number).collect();
    let names = names();
    let text = words(&names);
    let queue = queue();
    let shared: Vec<Rc<u64>> = share(&squares);
    let aligned = Box::new(Aligned([7; 64]));

    full();

    let sum: u64 = squares.iter().sum();
    assert_eq!(
        sum,
        (1..u64::from(MANY)).map(|number| number * number).sum()
    );
    assert!(
        names
            .iter()
            .all(|(number, name)| *name == format!("number {number}"))
    );
    assert_eq!(text.matches("number").count(), names.len());
    assert!(queue.iter().copied().eq(MANY..2 * MANY));
    assert!(
        shared
            .iter()
            .all(|one| Rc::strong_count(one) == 2 && **one % 9 == 0)
    );
    assert_eq!((&raw const *aligned).addr() % align_of::<Aligned>(), 0);
    assert!(aligned.0.iter().all(|&byte| byte == 7));
}

/// A value with a large alignment.
#[repr(align(512))]
struct Aligned([u8; 64]);

/// Returns a tree from which every third entry was removed.
fn names() -> BTreeMap<u32, String> {
    let mut names: BTreeMap<u32, String> = (0..MANY)
        .map(|number| (number, format!("number {number}")))
        .collect();
    names.retain(|number, _| number % 3 != 0);
    assert_eq!(names.len() as u32, MANY - MANY.div_ceil(3));
    names
}

/// Returns a string that grew word by word.
fn words(names: &BTreeMap<u32, String>) -> String {
    let mut text = String::new();
    for name in names.values() {
        text.push_str(name);
        text.push(' ');
    }
    text
}

/// Returns a queue whose front has moved.
fn queue() -> VecDeque<u32> {
    let mut queue: VecDeque<u32> = (0..MANY).collect();
    for number in MANY..2 * MANY {
        queue.push_back(number);
        assert_eq!(queue.pop_front(), Some(number - MANY));
    }
    queue
}

/// Returns shared numbers, each with two owners.
fn share(numbers: &[u64]) -> Vec<Rc<u64>> {
    let some = numbers.iter().filter(|&number| number % 9 == 0);
    let first: Vec<Rc<u64>> = some.copied().map(Rc::new).collect();
    let second = first.iter().cloned();
    first.iter().cloned().chain(second).collect()
}
