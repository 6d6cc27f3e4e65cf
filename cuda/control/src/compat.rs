//! The choice between this crate's behaviour and AntMan's where this crate corrects AntMan.

/// Whether a part behaves as documented here or as AntMan does. Each part that takes the value documents the
/// difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Compat {
    /// The documented behaviour of this crate.
    #[default]
    Corrected,
    /// AntMan's, its mistakes included: for comparing runs with it.
    AntMan,
}

impl Compat {
    pub(crate) fn is_antman(self) -> bool {
        self == Self::AntMan
    }
}
