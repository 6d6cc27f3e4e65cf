//! Linear probing: finds the value of a key in a table of slots that the caller lends.
//!
//! A slot holds any value of the caller: a record, or a link to one. A function of the caller returns the slot's key,
//! or `None` for a vacant slot. A key is stored in the first vacant slot, starting at its *home* and wrapping around
//! the end. A removal moves later values into the gap, so there are no tombstones.
//!
//! # Invariants
//! * PROBE1 at least one slot is vacant, so that every search ends. If at most half of the slots are taken, a search
//!   examines about two slots.
//! * PROBE2 no slot between a key's home and its slot is vacant.
//!
//! All operations are expected O(1) if at most half of the slots are taken.

/// Returns the slot of a key.
///
/// # Errors
/// The vacant slot where the key would be, or the number of slots if none is vacant.
#[inline]
pub fn find<S>(slots: &[S], key: u64, key_of: impl Fn(&S) -> Option<u64>) -> Result<usize, usize> {
    let mut place = home(key, slots.len());
    for _ in 0..slots.len() {
        match slots.get(place).and_then(&key_of) {
            None => return Err(place),
            Some(found) if found == key => return Ok(place),
            Some(_) => place = after(place, slots.len()),
        }
    }
    Err(slots.len())
}

/// Empties a slot and returns its value. The values after it move up, unless that would put them before their homes.
#[inline]
pub fn remove<S: Copy>(
    slots: &mut [S],
    place: usize,
    vacant: S,
    key_of: impl Fn(&S) -> Option<u64>,
) -> Option<S> {
    let removed = *slots.get(place)?;
    let (mut gap, mut place) = (place, place);
    for _ in 1..slots.len() {
        place = after(place, slots.len());
        let Some(&slot) = slots.get(place) else { break };
        let Some(key) = key_of(&slot) else { break };
        let from_home = distance(home(key, slots.len()), place, slots.len());
        if from_home >= distance(gap, place, slots.len()) {
            set(slots, gap, slot);
            gap = place;
        }
    }
    set(slots, gap, vacant);
    Some(removed)
}

/// Returns the home of a key: its slot if no other key is in the way.
///
/// This is Fibonacci hashing. Addresses and sizes are round, so their low bits carry little information. Multiplying a
/// key by 2^64 / golden ratio gathers the information of the other bits in the upper bits. Multiplying this by the
/// length gives a product whose upper half is below the length, without a division.
#[inline]
fn home(key: u64, slots: usize) -> usize {
    let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((u128::from(hash) * slots as u128) >> 64) as usize
}

#[inline]
const fn after(place: usize, slots: usize) -> usize {
    if place + 1 == slots { 0 } else { place + 1 }
}

/// Returns the number of steps from `from` to `to` in the order of probing.
#[inline]
const fn distance(from: usize, to: usize, slots: usize) -> usize {
    if to >= from {
        to - from
    } else {
        to + slots - from
    }
}

#[inline]
fn set<S>(slots: &mut [S], place: usize, value: S) {
    if let Some(slot) = slots.get_mut(place) {
        *slot = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: usize = 40;

    fn key_of(slot: &u64) -> Option<u64> {
        slot.checked_sub(1)
    }

    /// Checks PROBE2 literally.
    fn is_sound(slots: &[u64]) -> bool {
        slots.iter().enumerate().all(|(place, slot)| {
            let Some(key) = key_of(slot) else { return true };
            let mut at = home(key, slots.len());
            while at != place && slots[at] != 0 {
                at = after(at, slots.len());
            }
            at == place
        })
    }

    #[test]
    fn random_inserts_and_removes_agree_with_a_plain_list() {
        for length in [1, 2, 3, 17, 32, 80] {
            let (mut slots, mut there) = ([0; 80], [false; KEYS]);
            let slots = &mut slots[..length];
            let mut seed: u64 = 7;
            for _ in 0..20_000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let number = (seed >> 33) as usize % KEYS;
                // The keys are round, and some of them are next to each other.
                let key = (number as u64) << (number % 3 * 20);
                let taken = there.iter().filter(|there| **there).count();
                match find(slots, key, key_of) {
                    Ok(place) => {
                        assert!(there[number]);
                        assert_eq!(remove(slots, place, 0, key_of), Some(key + 1));
                        there[number] = false;
                    }
                    Err(place) => {
                        assert!(!there[number]);
                        // One slot stays vacant.
                        if taken + 1 < length {
                            slots[place] = key + 1;
                            there[number] = true;
                        }
                    }
                }
                assert!(is_sound(slots));
            }
        }
    }

    #[test]
    fn full_tables_and_empty_ones_end_every_search() {
        assert_eq!(find(&[] as &[u64], 1, key_of), Err(0));
        assert_eq!(remove(&mut [], 0, 0, key_of), None);
        let mut full = [5, 6, 7];
        assert_eq!(find(&full, 1, key_of), Err(3));
        let place = find(&full, 4, key_of).unwrap_or(0);
        remove(&mut full, place, 0, key_of);
        assert_eq!(full.iter().filter(|slot| **slot == 0).count(), 1);
    }

    #[test]
    fn homes_are_inside_the_table_and_spread() {
        for length in [1, 3, 64, 1000] {
            assert!((0..1000).all(|key| home(key << 40, length) < length));
            assert!(home(u64::MAX, length) < length);
        }
        let mut hit = [false; 64];
        (0..64).for_each(|key| hit[home(key << 12, 64)] = true);
        assert!(hit.iter().filter(|hit| **hit).count() > 32);
    }
}
