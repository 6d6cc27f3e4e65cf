//! [`Text`]: a text buffer for reports, made without allocating.

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
