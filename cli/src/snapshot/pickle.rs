//! Writes plain data as a pickle: numbers, strings, lists and dictionaries.
//!
//! Uses protocol 2, and only the opcodes that PyTorch's viewer knows, a subset of Python's. A
//! repeated string is written as a reference.

use std::collections::HashMap;
use std::io::{self, Write};

/// Maximum number of items that one opcode appends, as in Python. The viewer passes them as
/// arguments of one call.
const BATCH: usize = 1000;

/// Maximum number of strings that can be referenced, since a reference is one byte.
const MAX_TEXTS: usize = 256;

/// A pickle being written.
pub(super) struct PickleWriter<W> {
    out: W,
    texts: HashMap<String, u8>,
}

impl<W: Write> PickleWriter<W> {
    pub(super) fn begin(mut out: W) -> io::Result<Self> {
        out.write_all(&[0x80, 2])?;
        let texts = HashMap::new();
        Ok(Self { out, texts })
    }

    /// Ends the pickle after its one value.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    pub(super) fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(small) = u8::try_from(number) {
            return self.out.write_all(&[b'K', small]);
        }
        if let Ok(int) = i32::try_from(number) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&int.to_le_bytes());
        }
        // The encoded number is signed, so if the high bit is set, a zero byte must follow.
        let len = (72 - number.leading_zeros() as usize) / 8;
        let bytes = u128::from(number).to_le_bytes();
        self.out.write_all(&[0x8a, len as u8])?;
        self.out.write_all(&bytes[..len])
    }

    pub(super) fn truth(&mut self, truth: bool) -> io::Result<()> {
        self.out.write_all(&[if truth { 0x88 } else { 0x89 }])
    }

    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&place) = self.texts.get(text) {
            return self.out.write_all(&[b'h', place]);
        }
        let len = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.out.write_all(b"X")?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(text.as_bytes())?;
        if let Ok(place) = u8::try_from(self.texts.len())
            && self.texts.len() < MAX_TEXTS
        {
            self.texts.insert(text.to_owned(), place);
            self.out.write_all(&[b'q', place])?;
        }
        Ok(())
    }

    /// Writes a list. Each call of `item` writes one item.
    pub(super) fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut item: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"]")?;
        let count = items.len();
        for (index, value) in items.enumerate() {
            if index % BATCH == 0 {
                self.out.write_all(b"(")?;
            }
            item(self, value)?;
            if index % BATCH == BATCH - 1 || index + 1 == count {
                self.out.write_all(b"e")?;
            }
        }
        Ok(())
    }

    pub(super) fn empty_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"]")
    }

    /// Writes a pair of numbers, as a tuple.
    pub(super) fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.number(first)?;
        self.number(second)?;
        self.out.write_all(&[0x86])
    }

    /// Writes a dictionary. `fields` writes its entries, each a string and a value.
    pub(super) fn dict(
        &mut self,
        fields: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"}(")?;
        fields(self)?;
        self.out.write_all(b"u")
    }

    /// Writes a dictionary entry whose value is a number.
    pub(super) fn number_at(&mut self, key: &str, number: u64) -> io::Result<()> {
        self.text(key)?;
        self.number(number)
    }

    /// Writes a dictionary entry whose value is a string.
    pub(super) fn text_at(&mut self, key: &str, text: &str) -> io::Result<()> {
        self.text(key)?;
        self.text(text)
    }
}
