//! The fill of memory outside of blocks. Slack and front have the fill of their block. Free memory
//! is zero; in a checking heap it has that fill, too, so that a read finds neither a pointer nor a
//! plausible number.

use super::blocks::{Known, UseState};

/// Returns the byte that fills a block's slack. It differs between most blocks, and is never 0, the
/// byte that is most often written past an end.
fn fill_of(block: *mut u8) -> u8 {
    // Fibonacci hashing: the product's upper bits depend on all of the address.
    let hash = (block.addr() as u64 >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash >> 56) as u8 | 1
}

/// Returns the two filled parts of a block's memory, and their fill.
fn parts(block: *mut u8, known: &Known) -> ([(*mut u8, usize); 2], u8) {
    let front = block.wrapping_sub(known.front_bytes());
    match known.state {
        UseState::Free if !known.is_checked() => ([(front, 0), (block, known.granted_bytes())], 0),
        UseState::Free => ([(front, 0), (front, known.whole_bytes())], fill_of(block)),
        UseState::Used | UseState::Leaving => {
            let slack = block.wrapping_add(known.bytes);
            let parts = [(front, known.front_bytes()), (slack, known.slack_bytes())];
            (parts, fill_of(block))
        }
    }
}

/// Fills the parts of a block outside the program's bytes.
///
/// # Safety
/// The block is as long as its entry says, and these parts are the caller's.
pub(super) unsafe fn fill(block: *mut u8, known: &Known) {
    let (parts, fill) = parts(block, known);
    for (start, bytes) in parts {
        // SAFETY: the part lies in the block, and is the caller's.
        unsafe { start.write_bytes(fill, bytes) };
    }
}

/// Finds the first byte that differs from the fill, among the first `most` bytes of each part.
///
/// # Safety
/// The block is as long as its entry says.
pub(super) unsafe fn first_written(block: *mut u8, known: &Known, most: usize) -> Option<*mut u8> {
    let (parts, fill) = parts(block, known);
    parts.into_iter().find_map(|(start, bytes)| {
        // SAFETY: the part lies in the block.
        unsafe { first_other(start, bytes.min(most), fill) }
    })
}

/// # Safety
/// The `bytes` bytes at `start` can be read.
unsafe fn first_other(start: *mut u8, bytes: usize, fill: u8) -> Option<*mut u8> {
    // SAFETY: the caller promises that these bytes can be read. They are not written, unless the
    // program is broken.
    let bytes = unsafe { core::slice::from_raw_parts(start, bytes) };
    let (words, rest) = bytes.as_chunks();
    let word = u128::from_ne_bytes([fill; 16]);
    if words.iter().all(|&here| u128::from_ne_bytes(here) == word)
        && rest.iter().all(|&byte| byte == fill)
    {
        return None;
    }
    let place = bytes.iter().position(|&byte| byte != fill)?;
    Some(start.wrapping_add(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_looked_at() {
        for length in [0, 1, 15, 16, 17, 100] {
            let mut memory = vec![7; length];
            let written = |memory: &mut [u8]| {
                let start = memory.as_mut_ptr();
                // SAFETY: memory of ours, that long.
                let found = unsafe { first_other(start, memory.len(), 7) };
                found.map(|at| at.addr() - start.addr())
            };
            assert_eq!(written(&mut memory), None);
            for place in 0..length {
                memory[place] ^= 1;
                assert_eq!(written(&mut memory), Some(place), "of {length}");
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
