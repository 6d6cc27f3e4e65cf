//! Policies, table and device of one run, as seeded tests and the fuzzer draw them.

use std::num::NonZeroU32;

use larder_core::{BackOff, BfcConfig, Coalesce, Fit, Growth, Shrink, Split};

use crate::Random;

/// What a run is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policies {
    /// The policies.
    pub config: BfcConfig,
    /// Records of the chunk table.
    pub records: usize,
    /// First address of the device.
    pub start: u64,
    /// Bytes of the device.
    pub bytes: u64,
}

/// Bytes of a granule in all runs.
const GRANULE: u64 = 256;

impl Policies {
    /// Bytes that [`decode`](Self::decode) takes.
    pub const ENCODED_BYTES: usize = 7;

    /// The policies that these bytes say: ours, TensorFlow's, or any mixture; small units, so that
    /// ties and exhaustion happen.
    pub fn decode(bytes: [u8; Self::ENCODED_BYTES]) -> Self {
        let [kind, a, b, c, d, e, f] = bytes;
        let unit_bytes = GRANULE * (1 + u64::from(a % 24));
        let first_bytes = GRANULE << (a % 6);
        let config = match kind % 4 {
            0 => BfcConfig {
                growth: Growth::Range {
                    unit_bytes,
                    ahead_divisor: None,
                },
                ..BfcConfig::default()
            },
            1 => BfcConfig {
                growth: Growth::Doubling { first_bytes },
                ..BfcConfig::tensorflow(u64::MAX)
            },
            _ => Self::mixture([a, b, c], unit_bytes, first_bytes),
        };
        let bytes = [1 << 14, 1 << 18, 1 << 24, 1 << 40][usize::from(d % 4)];
        Self {
            config: BfcConfig {
                // Now and then a limit that is no multiple of anything.
                limit_bytes: if e % 3 == 0 {
                    bytes / 2 + 128
                } else {
                    u64::MAX
                },
                ..config
            },
            records: [4, 12, 40, 400][usize::from(d / 4 % 4)],
            start: GRANULE * (1 + u64::from(f)),
            bytes,
        }
    }

    fn mixture([a, b, c]: [u8; 3], unit_bytes: u64, first_bytes: u64) -> BfcConfig {
        BfcConfig {
            granule_bytes: GRANULE,
            split: match b % 3 {
                0 => Split::TwiceOrWaste {
                    waste_bytes: 3 * GRANULE,
                },
                1 => Split::TwiceOrWaste {
                    waste_bytes: 1 << 20,
                },
                _ => Split::Always,
            },
            growth: match b / 3 % 3 {
                0 => Growth::Doubling { first_bytes },
                1 => Growth::Range {
                    unit_bytes,
                    ahead_divisor: NonZeroU32::new(1 + u32::from(a / 32)),
                },
                _ => Growth::Range {
                    unit_bytes,
                    ahead_divisor: None,
                },
            },
            fit: match b / 9 % 4 {
                0 => Fit::Exact,
                n => Fit::Near { scan: u32::from(n) },
            },
            wilderness_last: c & 1 == 0,
            coalesce: if c & 2 == 0 {
                Coalesce::SameStream
            } else {
                Coalesce::Settled
            },
            back_off: if c & 4 == 0 {
                BackOff::Least
            } else {
                BackOff::Once
            },
            collect_regions: c & 8 == 0,
            shrink: if c & 16 == 0 {
                Shrink::Pending
            } else {
                Shrink::Clamp
            },
            limit_bytes: u64::MAX,
        }
    }

    /// Random policies.
    pub fn random(random: &mut Random) -> Self {
        let bytes = random.next_u64().to_le_bytes();
        Self::decode(std::array::from_fn(|i| bytes[i]))
    }
}
