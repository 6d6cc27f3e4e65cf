//! The operations on an allocator that seeded tests and the fuzzer choose from.

use crate::Random;

/// One operation. Its small numbers are mapped to existing blocks and valid values, so that any sequence of operations
/// is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Allocate `granules` granules minus `less` bytes.
    Alloc {
        /// Size in granules, 0 for a request of zero bytes.
        granules: u16,
        /// Number of bytes missing from whole granules.
        less: u8,
        /// If above 0, the alignment is `granule << align`.
        align: u8,
        /// Stream, taken modulo 3.
        stream: u8,
        /// Bit 0: without a wait. The other bits, as a number below 16: `freed_by` at this distance from the completed
        /// point.
        flags: u8,
    },
    /// Free a live block.
    Free {
        /// The block, modulo the number of live blocks.
        which: u16,
    },
    /// Free a live block that a stream still uses.
    FreeAfter {
        /// The block, modulo the number of live blocks.
        which: u16,
        /// Stream, modulo 3.
        stream: u8,
        /// The distance from the completed point to the event.
        ahead: u8,
    },
    /// Complete events of a stream.
    Complete {
        /// Stream, modulo 3.
        stream: u8,
        /// The number of events. Above 200, a jump to the end of the window of points, or far beyond it.
        by: u8,
    },
    /// Allocate at a given address.
    AllocAt {
        /// Granules from the base of the first region.
        offset: u16,
        /// Size in granules, at least one.
        granules: u8,
    },
    /// Change a live block's size in place.
    Resize {
        /// The block, modulo the number of live blocks.
        which: u8,
        /// The new size in granules, or the increase.
        granules: u16,
        /// Number of bytes missing from whole granules.
        less: u8,
        /// Bits 0 and 1: the stream, modulo 3. Bit 2: the sub-allocator may be called too. Bit 3: `granules` is an
        /// increase. From 240 up: a size close to 2^64 bytes instead.
        how: u8,
        /// The distance from the completed point to the event until which a cut-off end is in use: 0 for no event, 191
        /// for an event beyond the window.
        ahead: u8,
    },
    /// Set the limit and release memory above it.
    Adjust {
        /// The limit in sixteenths of the reserved bytes, modulo 33. From 224 up: 1 TiB.
        share: u8,
    },
    /// Release everything that is free.
    Trim,
    /// Make the sub-allocator refuse to grow.
    RefuseGrow {
        /// The number of calls, modulo 4.
        calls: u8,
    },
    /// Make the sub-allocator refuse to release.
    RefuseRelease {
        /// The number of calls, modulo 4.
        calls: u8,
    },
    /// Make the sub-allocator skip addresses, so that its next range is not adjacent to the last.
    Gap,
}

impl Op {
    /// Number of bytes that [`decode`](Self::decode) takes.
    pub const ENCODED_BYTES: usize = 7;

    /// Decodes an operation. Every sequence of bytes is valid.
    pub fn decode(bytes: [u8; Self::ENCODED_BYTES]) -> Self {
        let [kind, a, b, c, d, e, f] = bytes;
        let wide = u16::from_le_bytes([a, b]);
        match kind % 40 {
            0..=11 => Self::Alloc {
                granules: wide % [4, 16, 64, 512, 4096][usize::from(f) % 5],
                less: c,
                align: (d & 7) * u8::from(d >= 208),
                stream: d,
                flags: e,
            },
            12..=19 => Self::Free { which: wide },
            20..=23 => Self::FreeAfter {
                which: wide,
                stream: c,
                ahead: d,
            },
            24..=26 => Self::Complete { stream: a, by: b },
            27 => Self::AllocAt {
                offset: wide % 1024,
                granules: c,
            },
            28 => Self::Adjust { share: a },
            29 if a < 64 => Self::Trim,
            29 if a < 128 => Self::Gap,
            30 => Self::RefuseGrow { calls: a },
            31 => Self::RefuseRelease { calls: a },
            32..=39 => Self::Resize {
                which: a,
                granules: u16::from_le_bytes([b, c]) % [4, 16, 64, 512, 4096][usize::from(f) % 5],
                less: c,
                how: d,
                ahead: e.saturating_sub(64),
            },
            _ => Self::Free { which: wide },
        }
    }

    /// Returns a random operation.
    pub fn random(random: &mut Random) -> Self {
        let bytes = random.next_u64().to_le_bytes();
        Self::decode(std::array::from_fn(|i| bytes[i]))
    }
}
