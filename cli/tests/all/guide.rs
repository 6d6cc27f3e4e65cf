//! The README stays short, and links between pages of the repository have a target.

use std::fs;
use std::path::{Path, PathBuf};

/// Number of words that can be read in five minutes.
const README_WORDS: usize = 1500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Collects all pages below a folder, except in folders of built or fetched files.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let is_made = matches!(&*name, "target" | "book" | "shared") || name.starts_with('.');
            if !is_made {
                pages(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Returns a text without its code blocks and inline code.
fn prose(text: &str) -> String {
    let mut prose = String::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.extend(line.split('`').step_by(2));
            prose.push('\n');
        }
    }
    prose
}

fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let behind = prose.split("](").skip(1);
    behind
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link.to_owned())
        .collect()
}

fn anchors(text: &str) -> Vec<String> {
    let mut in_block = false;
    let headings = text.lines().filter(|line| {
        in_block ^= line.starts_with("```");
        !in_block && line.starts_with('#')
    });
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

fn broken(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() {
        page.to_owned()
    } else {
        page.parent()?.join(file)
    };
    if !target.exists() {
        return Some(format!("{}: {link}", page.display()));
    }
    let has_anchor = anchor.is_empty()
        || fs::read_to_string(&target).is_ok_and(|text| anchors(&text).iter().any(|a| a == anchor));
    (!has_anchor).then(|| format!("{}: {link}, no such heading", page.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let mut all = Vec::new();
    pages(&root(), &mut all);
    assert!(all.len() > 20, "only {} pages", all.len());
    let mut wrong = Vec::new();
    for page in &all {
        let text = fs::read_to_string(page).expect("a page");
        wrong.extend(links(&text).iter().filter_map(|link| broken(page, link)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_readme_is_read_in_five_minutes() {
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    let words = readme.split_whitespace().count();
    assert!(words <= README_WORDS, "{words} words");
}

#[test]
fn each_page_of_the_guide_is_a_chapter_and_its_rust_is_compiled() {
    let folder = root().join("docs/guide/src");
    let summary = fs::read_to_string(folder.join("SUMMARY.md")).expect("the summary");
    let chapters = links(&summary);
    let mut all = Vec::new();
    pages(&folder, &mut all);
    for page in all {
        let name = page.file_name().unwrap_or_default().to_string_lossy();
        if name == "SUMMARY.md" {
            continue;
        }
        assert!(
            chapters.iter().any(|link| *link == name),
            "{name} is no chapter"
        );
        let text = fs::read_to_string(&page).expect("a page");
        assert!(
            !text.contains("```rust,ignore"),
            "{name} has Rust that nobody compiles"
        );
        let tested = ["core", "std-shim", "cuda"].iter().any(|package| {
            let lib = fs::read_to_string(root().join(package).join("src/lib.rs"));
            lib.is_ok_and(|lib| lib.contains(&format!("guide/src/{name}")))
        });
        assert!(
            tested || !text.contains("```rust"),
            "no package compiles {name}"
        );
    }
}
