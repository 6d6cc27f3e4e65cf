//! Whether AntMan's own behaviour is wanted where this crate corrects it.

/// Corrected, or as AntMan does it. What differs is said where the value is taken.
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
