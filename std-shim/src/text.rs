//! [`Text`]: what the heap says, made without allocating.

use core::fmt;

/// A text in memory that is there. What does not fit whole is refused.
pub(crate) struct Text<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> Text<'a> {
    /// An empty one.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, length: 0 }
    }

    /// What was written.
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
