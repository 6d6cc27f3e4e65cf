//! The words of the pages' scripts: sizes, places, requests, and the driver calls in an outcome.

use std::fmt::Write;

use larder_core::pages::PageCall;
use larder_core::{Addr, AddrRange, Align, AllocError, EventNumber, Request, StreamId};

use super::bench::{BASE, PAGE};
use crate::golden::option;

/// Reads a size in pages, or in bytes with the suffix `b`.
pub(crate) fn bytes(text: &str) -> u64 {
    let parse = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text}"));
    match (text.strip_suffix('b'), text.split_once('/')) {
        (Some(bytes), _) => parse(bytes),
        (_, Some((over, under))) => parse(over) * PAGE / parse(under),
        _ => parse(text).saturating_mul(PAGE),
    }
}

/// Reads the range `place:size`. A size of `rest` reaches to the end of the address space.
pub(crate) fn range(text: &str) -> AddrRange {
    let (place, size) = text.split_once(':').unwrap();
    let start = match place.strip_prefix('-') {
        Some(below) => BASE - bytes(below),
        None if place == "null" => 0,
        None => BASE + bytes(place),
    };
    let bytes = match size {
        "rest" => u64::MAX - start,
        size => bytes(size),
    };
    AddrRange::new(Addr::new(start), bytes).unwrap()
}

pub(crate) fn stream(words: &[&str], key: &str) -> Option<StreamId> {
    option(words, key).map(|number| StreamId::new(number.parse().unwrap()))
}

/// Returns a request for a size, with the options `on` (a stream), `by` (the event that frees it) and `align`.
pub(crate) fn request(size: &str, words: &[&str]) -> Request {
    let mut request = Request::new(bytes(size)).without_wait();
    request.stream = stream(words, "on").unwrap_or(StreamId::MAIN);
    if let Some(align) = option(words, "align") {
        request.align = Align::new(bytes(align)).unwrap();
    }
    if let Some(event) = option(words, "by") {
        request = request.freed_by(EventNumber::new(event.parse().unwrap()));
    }
    request
}

/// Describes a block's place: its page, and the bytes after the start of that page.
pub(crate) fn place(addr: Addr) -> String {
    let offset = addr.get() - BASE;
    match offset % PAGE {
        0 => format!("{}", offset / PAGE),
        rest => format!("{}+{rest}b", offset / PAGE),
    }
}

pub(crate) fn refusal(error: AllocError) -> String {
    match error {
        AllocError::OutOfMemory(out) => format!("refused: {:?}", out.cause),
        other => format!("refused: {other:?}"),
    }
}

/// Describes the calls of one kind: each number, with a count if it repeats in a row.
pub(crate) fn sizes(words: &mut String, kind: &str, numbers: &[u64]) {
    if numbers.is_empty() {
        return;
    }
    let runs = numbers.chunk_by(|one, next| one == next);
    let runs = runs.map(|run| match run.len() {
        1 => format!("{}", run[0]),
        count => format!("{}x{count}", run[0]),
    });
    write!(words, "; {kind} {}", runs.collect::<Vec<_>>().join(" ")).unwrap();
}

pub(crate) fn calls(made: &[PageCall]) -> String {
    let mut words = String::new();
    let (mut created, mut released, mut access) = (Vec::new(), Vec::new(), Vec::new());
    let (mut map, mut unmap) = (0, 0);
    for call in made {
        match *call {
            PageCall::Create { bytes, .. } => created.push(bytes / PAGE),
            PageCall::Release { bytes, .. } => released.push(bytes / PAGE),
            PageCall::Map { .. } => map += 1,
            PageCall::Unmap { .. } => unmap += 1,
            PageCall::SetAccess { range } => {
                let pages = range.bytes() / PAGE;
                access.push(format!("{}:{pages}", place(range.start())));
            }
        }
    }
    sizes(&mut words, "create", &created);
    for (kind, count) in [("map", map), ("unmap", unmap)] {
        if count > 0 {
            write!(words, "; {kind} {count}").unwrap();
        }
    }
    match access.len() {
        0 => {}
        1..=8 => write!(words, "; access {}", access.join(" ")).unwrap(),
        many => write!(words, "; access to {many} places").unwrap(),
    }
    sizes(&mut words, "release", &released);
    words
}

pub(crate) fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.into()
}
