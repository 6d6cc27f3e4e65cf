//! Maps whose entries come and go.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};

use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// The number of keys, and of steps that insert or remove one.
const NAMES: u32 = 60_000;
const NAME_STEPS: u32 = 900_000;
const NUMBERS: u32 = 400_000;
const NUMBER_STEPS: u32 = 900_000;

/// A map without the default hasher's random seed, so that every run is the same.
type Names = HashMap<String, Vec<u8>, BuildHasherDefault<DefaultHasher>>;

/// A hash map from strings to vectors.
pub fn map(scale: Scale) -> Outcome {
    let (names, steps) = (scale.of(NAMES), scale.of(NAME_STEPS));
    let mut random = Random::new(60);
    let mut tally = Tally::default();
    let clock = Clock::start();
    let mut map = Names::default();
    let sum = |value: &[u8]| value.len() as u64 * u64::from(value[0]);
    for _ in 0..steps {
        let name = format!("entry number {}", random.below(names));
        if random.below(5) < 2 {
            if let Some(value) = map.remove(&name) {
                tally.read(sum(&value));
            }
            continue;
        }
        let value = vec![random.next() as u8; random.within(16, 512)];
        tally.wrote(sum(&value));
        if let Some(old) = map.insert(name, value) {
            tally.read(sum(&old));
        }
    }
    for (_, value) in map {
        tally.read(sum(&value));
    }
    clock.stop(steps as u64, tally.answer())
}

/// An ordered map from numbers to boxed numbers.
pub fn btree(scale: Scale) -> Outcome {
    let (numbers, steps) = (scale.of(NUMBERS), scale.of(NUMBER_STEPS));
    let mut random = Random::new(40);
    let mut tally = Tally::default();
    let clock = Clock::start();
    let mut map: BTreeMap<u64, Box<u64>> = BTreeMap::new();
    for _ in 0..steps {
        let key = random.below(numbers) as u64;
        if random.below(5) < 2 {
            if let Some(value) = map.remove(&key) {
                tally.read(*value);
            }
            continue;
        }
        let value = Box::new(tally.wrote(random.next()));
        if let Some(old) = map.insert(key, value) {
            tally.read(*old);
        }
    }
    for (_, value) in map {
        tally.read(*value);
    }
    clock.stop(steps as u64, tally.answer())
}
