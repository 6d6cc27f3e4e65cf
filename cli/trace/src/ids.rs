//! Maps by block ids.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by block ids, for example of the blocks that are live while
/// [`for_each_event`](crate::for_each_event) reads. Faster than the standard map, because it does
/// not resist keys that an attacker chooses.
pub type IdMap<V> = HashMap<u32, V, BuildHasherDefault<IdHasher>>;

/// A hasher that does one multiplication, which spreads numbers that count up in steps of any size.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write_u32(&mut self, id: u32) {
        let wide = u128::from(self.0 ^ u64::from(id)) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (wide as u64) ^ (wide >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A map uses the low bits of a hash for the bucket, and the seven highest for the tag.
    #[test]
    fn ids_in_steps_of_any_power_of_two_are_spread() {
        for step in (0..22).map(|power| 1_u32 << power) {
            let hashes = (0..1024).map(|number| {
                let mut hasher = IdHasher::default();
                hasher.write_u32(number * step);
                hasher.finish()
            });
            let places: HashSet<u64> = hashes.clone().map(|hash| hash % 1024).collect();
            let rest: HashSet<u64> = hashes.map(|hash| hash >> 57).collect();
            assert!(
                places.len() > 300 && rest.len() > 100,
                "{step}: {}, {}",
                places.len(),
                rest.len()
            );
        }
    }
}
