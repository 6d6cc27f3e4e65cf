//! What memory holds that is not the program's: slack the fill of its block, free memory zeros.

use super::blocks::Known;

/// The fill of a block's slack: another one for most blocks, and never 0, which programs write past an end most often.
fn fill_of(block: *mut u8) -> u8 {
    // Fibonacci hashing: the product's upper bits depend on all of the address.
    let hash = (block.addr() as u64 >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash >> 56) as u8 | 1
}

/// Fills a block's slack.
///
/// # Safety
/// The block is as long as it is known to be, and its slack is the caller's.
pub(super) unsafe fn fill_slack(block: *mut u8, known: &Known) {
    let slack = block.wrapping_add(known.bytes);
    // SAFETY: the caller's promise.
    unsafe { slack.write_bytes(fill_of(block), known.slack_bytes()) };
}

/// Whether a block's slack has its fill, as far as `most` bytes of it tell.
///
/// # Safety
/// The block is as long as it is known to be.
pub(super) unsafe fn is_slack_whole(block: *mut u8, known: &Known, most: usize) -> bool {
    let bytes = known.slack_bytes().min(most);
    // SAFETY: the caller's promise.
    unsafe { is_filled(block.wrapping_add(known.bytes), bytes, fill_of(block)) }
}

/// Whether all bytes are zero.
///
/// # Safety
/// So many bytes can be read.
pub(super) unsafe fn is_zero(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { is_filled(start, bytes, 0) }
}

/// # Safety
/// So many bytes can be read.
unsafe fn is_filled(start: *mut u8, bytes: usize, fill: u8) -> bool {
    // SAFETY: the caller's promise. Nobody writes there, unless the program is broken.
    let bytes = unsafe { core::slice::from_raw_parts(start, bytes) };
    let (words, rest) = bytes.as_chunks();
    let word = u128::from_ne_bytes([fill; 16]);
    words.iter().all(|&here| u128::from_ne_bytes(here) == word)
        && rest.iter().all(|&byte| byte == fill)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_looked_at() {
        for length in [0, 1, 15, 16, 17, 100] {
            let mut memory = vec![7; length];
            // SAFETY: memory of ours, that long.
            let is_whole =
                |memory: &mut [u8]| unsafe { is_filled(memory.as_mut_ptr(), memory.len(), 7) };
            assert!(is_whole(&mut memory));
            for place in 0..length {
                memory[place] ^= 1;
                assert!(!is_whole(&mut memory), "{place} of {length}");
                memory[place] ^= 1;
            }
        }
    }

    #[test]
    fn a_fill_is_never_zero_and_differs_between_neighbours() {
        let fill = |number: usize| fill_of(core::ptr::without_provenance_mut(number * 16));
        let fills: Vec<u8> = (1..2000).map(fill).collect();
        assert!(fills.iter().all(|&fill| fill != 0));
        let same = fills.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(same < 20, "{same}");
    }
}
