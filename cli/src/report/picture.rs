//! The data of a page's pictures: one trace on several contenders, or one packed problem.
//!
//! The page contains the data as JSON, which `page.js` reads by its keys. A change is a pair of a
//! tick and a figure.

use std::io;

use serde::Serialize;

use super::page::escape;
use crate::numbers::Unit;
use crate::replay::Change;

/// The data of one picture: ticks, blocks, and each allocator's addresses and figures.
#[derive(Serialize)]
pub(crate) struct Picture<'p> {
    #[serde(skip)]
    pub(crate) name: &'p str,
    pub(crate) words: Words,
    /// The tick after the last.
    pub(crate) ticks: u64,
    pub(crate) steps: &'p [Change<u32>],
    pub(crate) blocks: DrawnBlocks,
    /// The size of the device, if it is known.
    pub(crate) device: Option<u64>,
    /// The requests that the recorded program's own allocator refused: the tick of the event before
    /// each, and its bytes.
    pub(crate) refusals: &'p [Change<u64>],
    pub(crate) allocators: Vec<Drawn<'p>>,
}

/// The words that label a picture.
#[derive(Serialize)]
pub(crate) struct Words {
    pub(crate) tick: &'static str,
    pub(crate) reserved: &'static str,
    pub(crate) planned: &'static str,
}

/// Blocks in allocation order, with one list for each property.
#[derive(Serialize, Default)]
pub(crate) struct DrawnBlocks {
    pub(crate) id: Vec<u32>,
    pub(crate) bytes: Vec<u64>,
    pub(crate) from: Vec<u64>,
    /// `ticks` for a block that is never freed.
    pub(crate) to: Vec<u64>,
    /// Streams, if the trace has them.
    pub(crate) stream: Option<Vec<Option<u64>>>,
}

/// One allocator.
#[derive(Serialize)]
pub(crate) struct Drawn<'p> {
    pub(crate) name: &'p str,
    /// Addresses of the blocks served.
    pub(crate) address: Vec<u64>,
    pub(crate) reserved: Vec<Change<u64>>,
    pub(crate) planned: Vec<Change<Option<u64>>>,
    pub(crate) calls: Vec<Change<u64>>,
    /// Held memory: first tick, end tick, address, bytes, and the bytes that moved at the first
    /// tick.
    pub(crate) held: Vec<[u64; 5]>,
    /// The tick at which a request was refused.
    pub(crate) refused: Option<u64>,
}

/// Returns the pictures of a page, whose sizes have one unit, and the script that draws them.
pub(crate) fn pictures(pictures: &[Picture<'_>], unit: Unit) -> io::Result<String> {
    let unit = unit.name;
    let mut html = format!(
        "<section id=\"pictures\" data-unit=\"{unit}\"><noscript>The pictures are drawn by a script.</noscript></section>\n"
    );
    for picture in pictures {
        // `<` is escaped so that no text can end the element.
        let data = serde_json::to_string(picture)?.replace('<', "\\u003c");
        let name = escape(picture.name);
        html.push_str(&format!(
            "<script type=\"application/json\" data-name=\"{name}\">{data}</script>\n"
        ));
    }
    let script = include_str!("page.js");
    html.push_str(&format!("<script>\n{script}</script>\n"));
    Ok(html)
}
