//! [`Document`]: the stored value, made from its key alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Random;

/// The median size of a document's text.
const MEDIAN_BYTES: f64 = 1500.0;
/// The standard deviation of the sizes' logarithms, by which one document in a thousand has at
/// least 75 times the median size.
const SIGMA: f64 = 1.4;
const MAX_BYTES: f64 = (512 << 10) as f64;

const LETTERS: &[u8; 16] = b"etaoinshrdlucmw ";

/// Text in lines, tags and named numbers, in many blocks of many sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// A title that contains the key.
    pub title: String,
    tags: Vec<String>,
    fields: BTreeMap<String, u64>,
    lines: Vec<String>,
}

impl Document {
    /// Returns the document of a key, always the same.
    pub fn of(key: u64) -> Self {
        let mut random = Random::new(key ^ 0x1a2d_e200);
        let size = (MEDIAN_BYTES * (SIGMA * random.normal()).exp()).min(MAX_BYTES) as usize;
        let mut lines = Vec::new();
        let mut text_bytes = 0;
        while text_bytes < size {
            let length = 16 + random.below(128) as usize;
            text_bytes += length;
            lines.push(words(&mut random, length));
        }
        let tags = (0..random.below(8)).map(|_| words(&mut random, 10));
        let tags = tags.collect();
        let fields = (0..random.below(12)).map(|at| (format!("field {at}"), random.next()));
        let fields = fields.collect();
        Self {
            title: format!("document {key}"),
            tags,
            fields,
            lines,
        }
    }

    /// Returns the approximate bytes of its text.
    pub fn text_bytes(&self) -> usize {
        self.strings().map(str::len).sum()
    }

    /// Returns a digest of its text, which another text has only by chance (FNV-1a).
    pub fn digest(&self) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |byte: u8| {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        };
        for string in self.strings() {
            string.bytes().for_each(&mut add);
            add(0xff);
        }
        for value in self.fields.values() {
            value.to_le_bytes().into_iter().for_each(&mut add);
        }
        digest
    }

    fn strings(&self) -> impl Iterator<Item = &str> {
        let lists = self.tags.iter().chain(&self.lines);
        let all = lists.chain(self.fields.keys()).map(String::as_str);
        all.chain(std::iter::once(self.title.as_str()))
    }
}

fn words(random: &mut Random, length: usize) -> String {
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut bits = random.next();
        for _ in 0..(length - text.len()).min(16) {
            text.push(char::from(LETTERS[(bits & 15) as usize]));
            bits >>= 4;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_document_and_json_keeps_it() {
        for key in 0..200 {
            let document = Document::of(key);
            let text = serde_json::to_vec(&document).unwrap();
            let read: Document = serde_json::from_slice(&text).unwrap();
            assert_eq!(read, Document::of(key));
            assert_eq!(read.digest(), document.digest());
            assert_ne!(document.digest(), Document::of(key + 1).digest());
        }
    }

    #[test]
    fn sizes_are_as_said() {
        let mut sizes: Vec<usize> = (0..4000)
            .map(|key| Document::of(key).text_bytes())
            .collect();
        sizes.sort_unstable();
        assert!((1300..2000).contains(&sizes[2000]), "{}", sizes[2000]);
        assert!(sizes[3999] > 60_000, "{}", sizes[3999]);
    }
}
