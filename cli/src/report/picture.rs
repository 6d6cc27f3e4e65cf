//! What a page's script draws: one trace through several contenders, or one packed problem.
//!
//! It stands in the page as JSON, whose keys `page.js` reads. Changes are pairs of a tick and a figure.

use std::io;

use serde::Serialize;

use super::page::escape;
use crate::replay::Change;

/// Ticks, blocks, and what each allocator did with them.
#[derive(Serialize)]
pub(crate) struct Picture<'p> {
    #[serde(skip)]
    pub(crate) name: &'p str,
    pub(crate) words: Words,
    /// One behind the last.
    pub(crate) ticks: u64,
    pub(crate) steps: &'p [Change<u32>],
    pub(crate) blocks: Blocks,
    pub(crate) allocators: Vec<Drawn<'p>>,
}

/// What things are called.
#[derive(Serialize)]
pub(crate) struct Words {
    pub(crate) tick: &'static str,
    pub(crate) reserved: &'static str,
    pub(crate) planned: &'static str,
}

/// Blocks in the order in which they came, a list of each property.
#[derive(Serialize, Default)]
pub(crate) struct Blocks {
    pub(crate) id: Vec<u32>,
    pub(crate) bytes: Vec<u64>,
    pub(crate) from: Vec<u64>,
    /// `ticks` for what is never freed.
    pub(crate) to: Vec<u64>,
    /// Where the trace says it.
    pub(crate) stream: Option<Vec<Option<u64>>>,
}

/// One allocator.
#[derive(Serialize)]
pub(crate) struct Drawn<'p> {
    pub(crate) name: &'p str,
    /// Of the blocks, as many as it served.
    pub(crate) address: Vec<u64>,
    pub(crate) reserved: Vec<Change<u64>>,
    pub(crate) planned: Vec<Change<Option<u64>>>,
    pub(crate) calls: Vec<Change<u64>>,
    /// From, to, address, bytes, and the bytes that moved at that tick.
    pub(crate) held: Vec<[u64; 5]>,
    /// The tick that was refused.
    pub(crate) refused: Option<u64>,
}

/// The pictures of a page, and the script that draws them.
pub(crate) fn pictures(pictures: &[Picture<'_>]) -> io::Result<String> {
    let mut html = "<section id=\"pictures\"><noscript>The pictures are drawn by a script.</noscript></section>\n".to_owned();
    for picture in pictures {
        // No text in it can end the element.
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
