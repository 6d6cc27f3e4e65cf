//! Operations on an allocator, as seeded tests and the fuzzer draw them.

use crate::Random;

/// One operation. Numbers are small and are mapped to what exists at that moment, so that any
/// sequence makes sense.
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
        /// Bit 0: may wait. Bits 1..: with 1, `freed_by` this far around the completed point.
        flags: u8,
    },
    /// Free a live block.
    Free {
        /// Which, modulo the number of live blocks.
        which: u16,
    },
    /// Free a live block that a stream still uses.
    FreeAfter {
        /// Which, modulo the number of live blocks.
        which: u16,
        /// Stream, modulo 3.
        stream: u8,
        /// How far the event is ahead of the completed point.
        ahead: u8,
    },
    /// A stream has completed events.
    Complete {
        /// Stream, modulo 3.
        stream: u8,
        /// How many events; above 200 a jump far beyond the window of points.
        by: u8,
    },
    /// Allocate at a place.
    AllocAt {
        /// Granules from the base of the first region.
        offset: u16,
        /// Size in granules, at least one is taken.
        granules: u8,
    },
    /// Change a live block's size in place.
    Resize {
        /// Which, modulo the number of live blocks.
        which: u8,
        /// New size in granules, or how many more than now.
        granules: u16,
        /// Bytes below the full granules.
        less: u8,
        /// Bits 0 to 1: stream, modulo 3. Bit 2: over the sub-allocator. Bit 3: `granules` is how many
        /// more than now. From 240 up: about the most that 64 bits can say.
        how: u8,
        /// How far the event of an end that is cut off is ahead of the completed point; 0 for none, 191 for
        /// one beyond the window.
        ahead: u8,
    },
    /// Set the limit and release what is above it.
    Adjust {
        /// The limit in 1/32 of twice the present reservation.
        share: u8,
    },
    /// Release everything that is free.
    Trim,
    /// The sub-allocator refuses so many calls from now on (modulo 4).
    RefuseGrow {
        /// How many.
        calls: u8,
    },
    /// The sub-allocator takes nothing back for so many calls (modulo 4).
    RefuseRelease {
        /// How many.
        calls: u8,
    },
    /// The sub-allocator skips addresses, so that its next range is not adjacent.
    Gap,
}

impl Op {
    /// Bytes that [`decode`](Self::decode) takes for one operation.
    pub const ENCODED_BYTES: usize = 7;

    /// The operation that these bytes say; every sequence of bytes says some.
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

    /// A random operation.
    pub fn random(random: &mut Random) -> Self {
        let bytes = random.next_u64().to_le_bytes();
        Self::decode(std::array::from_fn(|i| bytes[i]))
    }
}
