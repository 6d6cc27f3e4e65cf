//! The instructions of protocols 0 and 1 that are followed by a line of text. Later protocols have
//! binary instructions in place of them.

use std::ops::Range;

use super::{Machine, Value};
use crate::Defect;

impl Machine<'_> {
    /// Reads up to the end of the line. Escapes are not decoded, since the strings needed from a
    /// snapshot have none.
    pub(super) fn line(&mut self) -> Result<Range<usize>, Defect> {
        let start = self.at;
        let rest = self.bytes.get(start..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n');
        let end = start + length.ok_or(Defect::PickleCut)?;
        self.at = end + 1;
        Ok(start..end)
    }

    /// Reads a number in decimal digits; `01` is true and `00` is false.
    pub(super) fn number_line(&mut self) -> Result<(), Defect> {
        let line = self.line()?;
        let text = &self.bytes[line];
        let digits = text.strip_suffix(b"L").unwrap_or(text);
        let digits = digits.strip_prefix(b"-").unwrap_or(digits);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(self.damaged("a number that is not in decimal digits"));
        }
        let value = match text {
            b"01" => Value::True,
            b"00" => Value::Other,
            _ if text.starts_with(b"-") => Value::Other,
            _ => decimal(digits).map_or(Value::Other, Value::Number),
        };
        self.push(value)
    }

    /// Reads a quoted string, as Python 2 writes it.
    pub(super) fn quoted_line(&mut self) -> Result<(), Defect> {
        let line = self.line()?;
        let text = &self.bytes[line.clone()];
        let quoted = text.len() > 1 && text.first() == text.last();
        if !quoted || !text.starts_with(b"'") && !text.starts_with(b"\"") {
            return Err(self.damaged("a text without quotes"));
        }
        self.push_text(line.start + 1..line.end - 1)
    }

    /// Reads the number of a memo entry, in decimal digits.
    pub(super) fn place_line(&mut self) -> Result<usize, Defect> {
        let line = self.line()?;
        let place = decimal(&self.bytes[line]).and_then(|place| usize::try_from(place).ok());
        place.ok_or_else(|| self.damaged("a note whose number is not in decimal digits"))
    }
}

/// Parses decimal digits; `None` if there are other characters, or the number is too large.
fn decimal(digits: &[u8]) -> Option<u64> {
    let digits = digits.iter().all(u8::is_ascii_digit).then_some(digits)?;
    str::from_utf8(digits).ok()?.parse().ok()
}
