//! The limit of a GPU, divided among a program's allocators on that GPU.

/// The bound up to which a control file may raise a GPU's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Ceiling {
    /// The sum of the limits with which the GPU's allocators began, as in AntMan.
    #[default]
    Initial,
    /// This number of bytes.
    Bytes(u64),
    /// No bound.
    None,
}

impl Ceiling {
    /// Returns the ceiling in bytes of a GPU whose allocators began with these limits.
    pub fn bytes(self, first_limits: &[u64]) -> u64 {
        match self {
            Self::Initial => first_limits.iter().copied().fold(0, u64::saturating_add),
            Self::Bytes(bytes) => bytes,
            Self::None => u64::MAX,
        }
    }
}

/// Divides a GPU's limit among its allocators, in proportion to the limits with which they began.
/// The parts are rounded down, so they add up to no more than the limit.
///
/// ```
/// assert_eq!(larder_control::divide_limit(200, &[300, 100]), [150, 50]);
/// ```
pub fn divide_limit(bytes: u64, first_limits: &[u64]) -> Vec<u64> {
    let sum: u128 = first_limits.iter().copied().map(u128::from).sum();
    let count = first_limits.len() as u128;
    let part = |first: &u64| {
        let part = match sum {
            0 => u128::from(bytes) / count,
            sum => u128::from(bytes) * u128::from(*first) / sum,
        };
        u64::try_from(part).unwrap_or(bytes)
    };
    first_limits.iter().map(part).collect()
}
