//! The sizes that programs request.

use larder_cli::random::Random;

/// A distribution of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    /// 8 to 128 bytes: nodes, boxes, short strings.
    Small,
    /// 8 bytes to 1 KiB.
    Medium,
    /// Log-normal around 200 bytes, up to 64 KiB: most blocks are small, but most bytes are in
    /// large ones.
    LogNormal,
    /// Powers of two from 16 bytes to 16 KiB.
    PowersOfTwo,
    /// 4 to 64 KiB: buffers.
    Buffers,
    /// The allocations of a map from strings to numbers: nodes of two sizes, and strings.
    Tree,
}

impl Mix {
    /// All distributions, in the order of tables.
    pub(crate) const ALL: [Self; 6] = [
        Self::Small,
        Self::Medium,
        Self::LogNormal,
        Self::PowersOfTwo,
        Self::Buffers,
        Self::Tree,
    ];

    /// The name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Small => "8..128",
            Self::Medium => "8..1024",
            Self::LogNormal => "log-normal..64K",
            Self::PowersOfTwo => "16,32..16K",
            Self::Buffers => "4K..64K",
            Self::Tree => "tree",
        }
    }

    /// Draws the next size, in bytes.
    pub(crate) fn draw(self, random: &mut Random) -> u32 {
        match self {
            Self::Small => random.within(8, 128),
            Self::Medium => random.within(8, 1024),
            Self::LogNormal => (random.log_normal(200.0, 1.5) as u32).clamp(8, 64 << 10),
            Self::PowersOfTwo => 16 << random.below(11),
            Self::Buffers => random.within(4 << 10, 64 << 10),
            // One entry in six begins a leaf node, and one in sixty an inner node.
            Self::Tree => match random.below(60) {
                0 => 376,
                1..11 => 280,
                _ => random.within(8, 40),
            },
        }
    }
}
