//! Operations on an allocator, as seeded tests and the fuzzer draw them.

use crate::Random;

/// One operation. Its small numbers are mapped to existing blocks and valid values, so that any sequence makes sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Allocate `granules` granules less `less` bytes.
    Alloc {
        /// Size in granules, 0 for a request of zero bytes.
        granules: u16,
        /// Bytes below the full granules.
        less: u8,
        /// Alignment of `granule << align`, if above 0.
        align: u8,
        /// Stream, taken modulo 3.
        stream: u8,
        /// Bit 0: may wait. Bits 1 and up: with 1, `freed_by` at this distance from the completed point.
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
        /// The distance of the event ahead of the completed point.
        ahead: u8,
    },
    /// A stream has completed events.
    Complete {
        /// Stream, modulo 3.
        stream: u8,
        /// The number of events; above 200 a jump far beyond the window of points.
        by: u8,
    },
    /// Allocate at a place.
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
        /// Bytes below the full granules.
        less: u8,
        /// Bits 0 to 1: stream, modulo 3. Bit 2: also through the sub-allocator. Bit 3: `granules` is an increase.
        /// From 240 up: about the largest 64-bit size.
        how: u8,
        /// The distance of the event of a cut-off end ahead of the completed point; 0 for none, 191 for one beyond
        /// the window.
        ahead: u8,
    },
    /// Set the limit and release the memory above it.
    Adjust {
        /// The limit in 1/32 of twice the present reservation.
        share: u8,
    },
    /// Release everything that is free.
    Trim,
    /// The sub-allocator refuses calls from now on.
    RefuseGrow {
        /// The number of calls, modulo 4.
        calls: u8,
    },
    /// The sub-allocator refuses releases from now on.
    RefuseRelease {
        /// The number of calls, modulo 4.
        calls: u8,
    },
    /// The sub-allocator skips addresses, so that its next range is not adjacent.
    Gap,
}

impl Op {
    /// Bytes that [`decode`](Self::decode) takes for one operation.
    pub const ENCODED_BYTES: usize = 7;

    /// Decodes an operation; every sequence of bytes is one.
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
