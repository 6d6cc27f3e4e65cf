//! [`Line`]: a short text built in place, for code that must not allocate.

/// Number of digits of the largest `u64`.
const MAX_DIGITS: usize = 20;

/// A text of at most `N - 1` bytes, with room for the byte that ends it.
///
/// Text that does not fit is left out (by whole characters in [`shown`](Self::shown)), and
/// [`is_cut`](Self::is_cut) then returns `true`. Nothing here panics.
#[derive(Clone)]
pub(super) struct Line<const N: usize> {
    bytes: [u8; N],
    used: usize,
    cut: bool,
}

impl<const N: usize> Line<N> {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; N],
            used: 0,
            cut: false,
        }
    }

    /// Appends `text` unchanged.
    pub(super) fn text(&mut self, text: &[u8]) -> &mut Self {
        let room = self.bytes.get_mut(self.used..N.saturating_sub(1));
        let room = room.unwrap_or_default();
        let fits = text.len().min(room.len());
        for (to, from) in room.iter_mut().zip(text) {
            *to = *from;
        }
        self.used += fits;
        self.cut |= fits < text.len();
        self
    }

    /// Appends `number` in decimal digits.
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = [b'0'; MAX_DIGITS];
        let mut rest = number;
        let mut leading = MAX_DIGITS;
        for digit in digits.iter_mut().rev() {
            // The remainder is below ten, so nothing is cut off.
            *digit += (rest % 10) as u8;
            rest /= 10;
            leading -= 1;
            if rest == 0 {
                break;
            }
        }
        self.text(digits.get(leading..).unwrap_or_default())
    }

    /// Appends a text from outside so that it stays on its line and is UTF-8: a control character
    /// or an invalid byte becomes `?`.
    pub(super) fn shown(&mut self, text: &[u8]) -> &mut Self {
        for chunk in text.utf8_chunks() {
            for letter in chunk.valid().chars() {
                let letter = if letter.is_control() { '?' } else { letter };
                if self.used + letter.len_utf8() >= N {
                    self.cut = true;
                    return self;
                }
                self.text(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
            if !chunk.invalid().is_empty() {
                self.text(b"?");
            }
        }
        self
    }

    /// Returns whether any text was left out.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns the text with `end` behind it, for which there is always room.
    pub(super) fn ended(&mut self, end: u8) -> &[u8] {
        if let Some(last) = self.bytes.get_mut(self.used) {
            *last = end;
        }
        self.bytes.get(..=self.used).unwrap_or_default()
    }

    /// Returns the text.
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        for number in [0, 1, 9, 10, 99, 100, 4_294_967_294, u64::MAX - 1, u64::MAX] {
            let mut line = Line::<32>::new();
            line.number(number);
            assert_eq!(line.as_bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_line_takes_all_but_one_of_its_bytes_and_tells_what_it_left_out() {
        let mut line = Line::<5>::new();
        line.text(b"ab").text(b"cd");
        assert!(!line.is_cut());
        assert_eq!(line.ended(b'\n'), b"abcd\n");

        let mut line = Line::<5>::new();
        line.text(b"abcde");
        assert!(line.is_cut());
        assert_eq!(line.ended(b'\n'), b"abcd\n");
    }

    #[test]
    fn a_foreign_text_stays_on_its_line_and_is_utf8() {
        let mut line = Line::<32>::new();
        line.shown(b"a\nb\x1b[\xff\xc3\xa4\xf0\x9f");
        assert_eq!(line.as_bytes(), "a?b?[?ä?".as_bytes());
    }

    #[test]
    fn a_foreign_text_is_cut_between_two_characters() {
        for (text, kept) in [("xää", "xä"), ("xyä", "xy"), ("äxyz", "äx")] {
            let mut line = Line::<4>::new();
            line.shown(text.as_bytes());
            assert_eq!(line.as_bytes(), kept.as_bytes());
            assert!(line.is_cut());
        }
    }
}
