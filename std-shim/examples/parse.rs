//! A parser: reads Rust files into syntax trees, keeps all the trees, then drops them.
//!
//! `cargo run -p larder --example parse [FOLDER]`; without a folder it reads this
//! repository. It prints how much memory the program uses (`live`) and how much the heap
//! has in physical memory for that (`resident`), with all trees and two seconds after
//! they are dropped.

use std::error::Error;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use larder::Larder;
use walkdir::WalkDir;

#[global_allocator]
static HEAP: Larder = Larder::new();

fn say(when: &str) {
    let stats = HEAP.stats();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (live, resident) = (mib(stats.live_bytes), mib(stats.resident_bytes));
    println!("{when:15} live {live:7.1} MiB  resident {resident:7.1} MiB");
}

fn main() -> Result<(), Box<dyn Error>> {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let folder = env::args().nth(1).unwrap_or(repository.to_owned());
    let mut texts = Vec::new();
    // Skips build outputs.
    let walk = WalkDir::new(folder).into_iter();
    for entry in walk.filter_entry(|entry| entry.file_name() != "target") {
        let path = entry?.into_path();
        if path.extension().is_some_and(|ending| ending == "rs") {
            texts.push(fs::read_to_string(path)?);
        }
    }
    say("texts");
    let start = Instant::now();
    let trees: Result<Vec<syn::File>, syn::Error> =
        texts.iter().map(|text| syn::parse_file(text)).collect();
    let (trees, time) = (trees?, start.elapsed());
    println!("{} files parsed in {time:.1?}", trees.len());
    say("texts and trees");
    drop((texts, trees));
    thread::sleep(Duration::from_secs(2));
    say("nothing");
    Ok(())
}
