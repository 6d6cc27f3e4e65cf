//! [`Text`]: a text buffer for reports, made without allocating; [`Plural`]: a number of things.

use core::fmt;

/// A text in a borrowed buffer. A string that does not fit as a whole is refused.
pub(crate) struct Text<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> Text<'a> {
    /// Creates an empty text.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, length: 0 }
    }

    /// Returns the text written so far.
    pub(crate) fn written(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// A number of things, as "1 block" or "2 blocks".
pub(crate) struct Plural(pub(crate) usize, pub(crate) &'static str);

impl fmt::Display for Plural {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, thing) = self;
        let ending = if *count == 1 { "" } else { "s" };
        write!(f, "{count} {thing}{ending}")
    }
}

#[cfg(test)]
mod tests {
    use super::Plural;

    #[test]
    fn only_one_thing_is_singular() {
        let said = [0, 1, 2].map(|count| Plural(count, "block").to_string());
        assert_eq!(said, ["0 blocks", "1 block", "2 blocks"]);
    }
}
