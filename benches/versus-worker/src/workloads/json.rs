//! A document parsed into a tree of values and printed again.

use std::fmt::Write;

use serde_json::Value;

use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::digest;

/// Number of records in a document of 5 MB.
const RECORDS: u32 = 18_200;
const TIMES: usize = 2;

pub fn json(scale: Scale) -> Outcome {
    let text = document(scale.of(RECORDS));
    let mut printed = String::new();
    let clock = Clock::start();
    for _ in 0..TIMES {
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        printed = value.to_string();
    }
    let bytes = TIMES * text.len();
    let outcome = clock.stop(bytes as u64, digest(&printed));
    assert!(printed == text, "the document changed on the way");
    outcome
}

/// Returns a document in the printer's form: keys in order, no blanks.
fn document(records: usize) -> String {
    let mut random = Random::new(5);
    let mut text = String::from("[");
    for record in 0..records {
        if record > 0 {
            text.push(',');
        }
        let _ = write!(
            text,
            "{{\"active\":{},\"id\":{},\"name\":\"record {}\",\"parts\":[",
            random.below(2) == 0,
            random.next() >> 12,
            random.next(),
        );
        for part in 0..random.within(1, 6) {
            if part > 0 {
                text.push(',');
            }
            let _ = write!(
                text,
                "{{\"count\":{},\"price\":{}.25}}",
                random.below(100),
                random.below(10_000),
            );
        }
        text.push_str("],\"tags\":[\"red\",\"left\",\"new\"],\"text\":\"");
        for _ in 0..random.within(1, 12) {
            text.push_str(["lorem ", "quiet \\\"word\\\" ", "x\\n"][random.below(3)]);
        }
        text.push_str("\"}");
    }
    text.push(']');
    text
}
