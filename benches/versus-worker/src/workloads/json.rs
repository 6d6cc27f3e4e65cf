//! Documents parsed into trees of values and printed again: one long one, and the requests of a service.

use std::fmt::Write;
use std::sync::Mutex;
use std::thread;

use serde_json::Value;

use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::digest;

/// Number of records in a document of 5 MB.
const RECORDS: u32 = 18_200;
const TIMES: usize = 2;

pub fn json(scale: Scale) -> Outcome {
    let text = document(5, scale.of(RECORDS));
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

/// Number of requests of each thread, of different requests, and of requests that wait.
const REQUESTS: u32 = 2_500;
const TEXTS: u64 = 64;
const WAITING: usize = 400;
const THREADS: u64 = 2;

/// Two threads parse requests, which then wait for a while, and print waiting ones, their own or the other's, as the
/// workers of a runtime do.
pub fn requests(scale: Scale) -> Outcome {
    let count = scale.of(REQUESTS);
    let texts: Vec<String> = (0..TEXTS).map(|seed| document(seed, 8)).collect();
    let waiting: Vec<Mutex<Option<Value>>> = (0..WAITING).map(|_| Mutex::new(None)).collect();
    let clock = Clock::start();
    let work = |seed| {
        let (mut random, mut printed) = (Random::new(seed), Printed::default());
        for _ in 0..count {
            let text = &texts[random.below(texts.len())];
            let request: Value = serde_json::from_str(text).unwrap_or_default();
            let place = &waiting[random.below(WAITING)];
            printed.print(
                place
                    .lock()
                    .map_or(None, |mut place| place.replace(request)),
            );
        }
        printed
    };
    let mut all = Printed::default();
    thread::scope(|scope| {
        let working: Vec<_> = (0..THREADS)
            .map(|seed| scope.spawn(move || work(seed)))
            .collect();
        for thread in working {
            match thread.join() {
                Ok(printed) => all.join(&printed),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    for place in waiting {
        all.print(place.into_inner().unwrap_or_default());
    }
    clock.stop(all.bytes, all.digests)
}

/// The requests that were printed. The sum of their digests does not depend on their order.
#[derive(Default)]
struct Printed {
    bytes: u64,
    digests: u64,
}

impl Printed {
    fn print(&mut self, request: Option<Value>) {
        if let Some(request) = request {
            let text = request.to_string();
            self.bytes += text.len() as u64;
            self.digests = self.digests.wrapping_add(digest(&text));
        }
    }

    const fn join(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.digests = self.digests.wrapping_add(other.digests);
    }
}

/// Returns a document in the printer's form: keys in order, no blanks.
fn document(seed: u64, records: usize) -> String {
    let mut random = Random::new(seed);
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
