//! Escapes untrusted text before it is shown: names of files, and their contents, may hold
//! characters that a terminal obeys or that are invisible.
//!
//! VISIBLE1. Such characters leave this crate escaped, in everything that it prints and draws: each
//! line and each cell goes through [`visible`], each value of JSON through [`json`]. Line ends and
//! layout are added after that. Clippy refuses `println!` and `eprintln!` in this crate, because
//! they would bypass the escaping. The text for Prometheus is the exception, since its format
//! escapes labels as needed.

use serde::Serialize;

/// Returns the text with each hidden character escaped, such as `\u{1b}`.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) {
            shown.extend(letter.escape_unicode());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Formats a value as one line of JSON, in which hidden characters are escaped too, so that it
/// reads back as the same text.
///
/// # Errors
/// The errors of [`serde_json::to_string`].
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    let mut shown = String::with_capacity(text.len());
    // A line of JSON has no hidden characters outside its strings.
    for letter in text.chars() {
        if is_hidden(letter) {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            shown.push(letter);
        }
    }
    Ok(shown)
}

/// Returns whether a terminal obeys the character, or shows nothing for it: controls, line and
/// paragraph separators, and the characters that Unicode calls ignorable by default, which include
/// all that change the direction of text or have no width. Combining marks are not among them.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first and the last character of each kind that must be escaped.
    const HIDDEN: [char; 26] = [
        '\0',
        '\t',
        '\n',
        '\r',
        '\u{1b}',
        '\u{1f}',
        '\u{7f}',
        '\u{80}',
        '\u{85}',
        '\u{9b}',
        '\u{9f}',
        '\u{ad}',
        '\u{61c}',
        '\u{200b}',
        '\u{200d}',
        '\u{200e}',
        '\u{200f}',
        '\u{2028}',
        '\u{2029}',
        '\u{202a}',
        '\u{202e}',
        '\u{2060}',
        '\u{2066}',
        '\u{2069}',
        '\u{feff}',
        '\u{e0041}',
    ];

    #[test]
    fn hidden_characters_are_escaped_and_all_others_stay() {
        assert_eq!(visible("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\u{a}b");
        for letter in HIDDEN {
            let shown = visible(&format!("<{letter}>"));
            assert_eq!(shown, format!("<\\u{{{:x}}}>", u32::from(letter)));
        }
        // These are neighbours of the ranges, a decomposed letter, and wide characters.
        let plain = " ~\u{a0}\u{ac}\u{ae}ü\u{75}\u{308}→─日本\u{2027}\u{202f}\u{2070}😀\\u{1b}";
        assert_eq!(visible(plain), plain);
    }

    #[test]
    fn json_has_none_of_them_and_reads_back_as_the_same_text() {
        let text: String = HIDDEN.iter().chain(&['"', '\\', 'ü', '😀']).collect();
        let line = json(&[&text]).unwrap();
        assert!(!line.contains(HIDDEN), "{line}");
        assert!(line.contains("\\u009b") && line.contains("\\udb40\\udc41"));
        assert!(line.contains('ü') && line.contains('😀'), "{line}");
        let back: [String; 1] = serde_json::from_str(&line).unwrap();
        assert_eq!(back[0], text);
    }
}
