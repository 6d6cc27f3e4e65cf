//! A full region: allocation fails with an error, and the program continues.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use crate::{HEAP, REGION_BYTES, show};

/// The sizes of the blocks that fill the region, one size after the other.
const SIZES: [usize; 5] = [100, 400, 1000, 3000, 40_000];

/// Fills the region with blocks of each size, and frees them again.
pub fn run() {
    for size in SIZES {
        let before = HEAP.stats().live_bytes;
        let blocks = fill(size);
        if size == SIZES[0] {
            show("full of small blocks");
        }
        let bytes = blocks.len() * size;
        assert!(
            blocks.len() < blocks.capacity(),
            "{size}: the region was never full"
        );
        assert!(
            bytes > REGION_BYTES / 3,
            "only {bytes} bytes in blocks of {size}"
        );
        let marked =
            |(number, block): (usize, &Vec<u8>)| block.iter().all(|&byte| byte == mark(number));
        assert!(
            blocks.iter().enumerate().all(marked),
            "blocks of {size} overlap"
        );
        drop(blocks);
        // Memory that was full of blocks of one size serves any other.
        assert!(
            block(REGION_BYTES / 2).is_ok(),
            "{size}: no large block afterwards"
        );
        assert_eq!(
            HEAP.stats().live_bytes,
            before,
            "{size}: something is still live"
        );
    }
}

/// Allocates blocks of one size until the region is full, each with a mark of its own.
fn fill(size: usize) -> Vec<Vec<u8>> {
    // The list is in the same region, which bounds the number of blocks.
    let most = REGION_BYTES / (size + size_of::<Vec<u8>>());
    let mut blocks = Vec::with_capacity(most);
    while let Ok(mut one) = block(size) {
        one.resize(size, mark(blocks.len()));
        blocks.push(one);
    }
    blocks
}

/// Returns an empty vector with room for `bytes` bytes, or an error in place of `alloc`'s null
/// pointer.
fn block(bytes: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut block = Vec::new();
    block.try_reserve_exact(bytes)?;
    Ok(block)
}

fn mark(number: usize) -> u8 {
    (number % 251) as u8
}
