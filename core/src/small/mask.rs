//! [`Mask`]: hides the links of free blocks, so that a stray access to a free block can neither forge nor reveal a
//! link.

use super::slot::{Links, Slot};
use crate::sync::{AtomicUsize, Ordering};

/// The key of links that are not masked.
const PLAIN: usize = 1;
/// Alignment of all blocks.
const ALIGN: usize = 8;
/// Maximum number of bits in which addresses of a program differ, if words have more.
const ADDRESS_BITS: u32 = 48;

/// A secret that is drawn once, and the reaction to a link that was not masked with the secret.
///
/// A link is mixed with the address of its slot and then multiplied by the secret, so that a change of any bit changes
/// all bits above it. About one in 60,000 changes to the six lower bytes yields a word that looks like a link, which
/// then leads to a random address.
#[derive(Debug)]
pub struct Mask {
    /// The key, which is odd; 0 before it is drawn.
    key: AtomicUsize,
    changed: fn(*mut u8) -> !,
}

impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for Mask {}

impl Mask {
    /// Creates a mask without a secret. `changed` is called with the block whose link was changed, while locks of its
    /// heap are held.
    #[cfg(not(larder_loom))]
    pub const fn new(changed: fn(*mut u8) -> !) -> Self {
        Self {
            key: AtomicUsize::new(0),
            changed,
        }
    }

    /// Returns the links of all heaps with this mask. If `secret` returns a number in the first call, the links are
    /// masked from then on; otherwise they are plain.
    pub fn links(&'static self, secret: impl FnOnce() -> Option<usize>) -> Links {
        let mut key = self.key.load(Ordering::Relaxed);
        if key == 0 {
            // The key is odd, and never that of plain links.
            let drawn = secret().map_or(PLAIN, |secret| secret | 3);
            // Relaxed: the key is the only shared value.
            let entered =
                (self.key).compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
            key = entered.map_or_else(|first| first, |_| drawn);
        }
        match key {
            PLAIN => Links::PLAIN,
            _ => Links::masked(self),
        }
    }

    /// Returns the word in a slot that links to another, or to none.
    #[inline(never)]
    pub(super) fn word(&self, slot: *mut Slot, to: *mut Slot) -> usize {
        let key = self.key.load(Ordering::Relaxed);
        (to.expose_provenance() ^ pad(slot, key)).wrapping_mul(key)
    }

    /// Returns the slot to which `slot` links through this word.
    #[inline(never)]
    pub(super) fn read(&self, slot: *mut Slot, word: usize) -> *mut Slot {
        match self.link(slot, word) {
            Some(to) => to,
            None => (self.changed)(slot.cast()),
        }
    }

    /// Returns the slot to which a word links, or `None` if it cannot be a link.
    fn link(&self, slot: *mut Slot, word: usize) -> Option<*mut Slot> {
        let key = self.key.load(Ordering::Relaxed);
        let to = word.wrapping_mul(inverse(key)) ^ pad(slot, key);
        let far = (to ^ slot.addr()).checked_shr(ADDRESS_BITS).unwrap_or(0);
        let is_link = to == 0 || far == 0 && to.is_multiple_of(ALIGN);
        is_link.then(|| core::ptr::with_exposed_provenance_mut(to))
    }
}

/// Returns the value that a link in this slot is mixed with.
fn pad(slot: *mut Slot, key: usize) -> usize {
    let product = slot.addr().wrapping_mul(key);
    product.rotate_left(usize::BITS / 2)
}

/// Returns the multiplicative inverse of an odd number, modulo 2 to the power of a word's bits.
fn inverse(odd: usize) -> usize {
    // The inverse is correct in three bits at first, and in twice as many after each step.
    (0..5).fold(odd, |inverse, _| {
        inverse.wrapping_mul(2_usize.wrapping_sub(odd.wrapping_mul(inverse)))
    })
}

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;

    fn changed(_: *mut u8) -> ! {
        panic!("changed")
    }

    static MASK: Mask = Mask::new(changed);

    fn slots() -> [*mut Slot; 3] {
        [0x7f12_3456_7890, 0x7f12_3456_0010, 0x5500_0000_8000]
            .map(core::ptr::without_provenance_mut)
    }

    fn masked() -> &'static Mask {
        MASK.links(|| Some(0x9e37_79b9_7f4a_7c15));
        &MASK
    }

    #[test]
    fn a_link_reads_as_it_was_written_and_stands_nowhere_in_memory() {
        let mask = masked();
        let mut low_bits = 0;
        for from in slots() {
            for to in slots().into_iter().chain([core::ptr::null_mut()]) {
                let word = mask.word(from, to);
                assert_eq!(mask.read(from, word), to);
                assert_ne!(word, to.addr());
                low_bits |= word % 16;
                for other in slots().into_iter().filter(|&other| other != from) {
                    assert_ne!(mask.word(other, to), word, "the place tells");
                }
            }
        }
        assert_ne!(low_bits, 0, "addresses have none");
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_link_of_which_any_byte_was_changed_is_none() {
        let mask = masked();
        let mut taken_for_links = 0;
        for (from, to) in slots().into_iter().zip(slots().into_iter().rev()) {
            let word = mask.word(from, to);
            for shift in (0..usize::BITS).step_by(8) {
                for change in 1..=0xff_usize {
                    let other = word ^ change << shift;
                    taken_for_links += usize::from(mask.link(from, other).is_some());
                }
            }
            for written in [
                0,
                1,
                usize::MAX,
                to.addr(),
                from.addr(),
                0x6161_6161_6161_6161,
            ] {
                assert_eq!(mask.link(from, written), None, "{written:#x}");
            }
        }
        // Of the 6120 words, about one in 60,000 may look like a link.
        assert!(taken_for_links <= 1, "{taken_for_links}");
    }

    #[test]
    fn the_first_word_on_the_secret_stands() {
        static PLAIN: Mask = Mask::new(changed);
        assert_eq!(PLAIN.links(|| None), Links::PLAIN);
        assert_eq!(PLAIN.links(|| Some(7)), Links::PLAIN);
        let links = masked().links(|| None);
        assert_ne!(links, Links::PLAIN);
        // Even this key differs from the key of plain links.
        static ONE: Mask = Mask::new(changed);
        assert_ne!(ONE.links(|| Some(1)), Links::PLAIN);
    }

    #[test]
    fn an_odd_number_times_its_inverse_is_1() {
        for odd in [1, 3, 5, 0xffff_ffff, usize::MAX, 0x7f4a_7c15] {
            assert_eq!(inverse(odd).wrapping_mul(odd), 1, "{odd:#x}");
        }
    }
}
