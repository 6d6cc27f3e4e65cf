//! The policies, table and device of one run, which seeded tests and the fuzzer choose at random.

use std::num::NonZeroU32;

use larder_core::{Growth, RegionConfig};

use crate::Random;

/// The configuration of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policies {
    /// The policies.
    pub config: RegionConfig,
    /// Number of records in the chunk table.
    pub records: usize,
    /// First address of the device.
    pub start: u64,
    /// Size of the device in bytes.
    pub bytes: u64,
    /// Number of streams that operations use. If it is 1, the stream may still use every block that is freed.
    pub streams: u8,
}

/// Bytes of a granule in all runs.
const GRANULE: u64 = 256;

impl Policies {
    /// Number of bytes that [`decode`](Self::decode) takes.
    pub const ENCODED_BYTES: usize = 5;

    /// Decodes policies in any combination. Units are small, so that ties and exhaustion are frequent.
    pub fn decode(bytes: [u8; Self::ENCODED_BYTES]) -> Self {
        let [kind, unit, size, limit, start] = bytes;
        let ahead = NonZeroU32::new(1 + u32::from(unit / 32));
        let bytes = [1 << 14, 1 << 18, 1 << 24, 1 << 40][usize::from(size % 4)];
        Self {
            config: RegionConfig {
                granule_bytes: GRANULE,
                growth: Growth::Range {
                    unit_bytes: GRANULE * (1 + u64::from(unit % 24)),
                    ahead_divisor: ahead.filter(|_| kind & 1 == 1),
                },
                collect_regions: kind & 2 == 0,
                // Sometimes the limit is not a whole number of granules.
                limit_bytes: if limit % 3 == 0 {
                    bytes / 2 + 128
                } else {
                    u64::MAX
                },
            },
            records: [4, 12, 40, 400][usize::from(size / 4 % 4)],
            start: GRANULE * (1 + u64::from(start)),
            bytes,
            streams: 3,
        }
    }

    /// Returns random policies.
    pub fn random(random: &mut Random) -> Self {
        let bytes = random.next_u64().to_le_bytes();
        Self::decode(std::array::from_fn(|i| bytes[i]))
    }
}
