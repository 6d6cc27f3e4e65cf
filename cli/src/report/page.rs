//! One self-contained HTML page, without external resources.

use std::fs::{self, File};
use std::io;
use std::path::Path;

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
";

/// The style of all pages.
const STYLE: &str = include_str!("page.css");

/// Returns a page with this body, under a heading.
pub(crate) fn page(heading: &str, body: &str) -> String {
    format!(
        "{HEAD}<title>{heading}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n{body}</body>\n</html>\n"
    )
}

/// Returns a part of a page that is shown on request.
pub(crate) fn details(summary: &str, inside: &str) -> String {
    format!("<details><summary>{summary}</summary>\n{inside}</details>\n")
}

/// Returns lines as a list with a heading.
pub(crate) fn list(heading: &str, lines: &[String]) -> String {
    let items = lines
        .iter()
        .map(|line| format!("<li>{}</li>\n", escape(line)));
    let items: String = items.collect();
    format!("<h2>{heading}</h2>\n<ul>\n{items}</ul>\n")
}

/// Checks, before the work begins, that a page can be written to `path`.
///
/// An existing page is not modified, and no new file remains. A pipe is not opened, because closing
/// it would signal the end to its reader.
pub(crate) fn try_write(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(_) => {
            File::create_new(path)?;
            fs::remove_file(path)
        }
        Ok(_) if path.is_file() || path.is_dir() => {
            File::options().write(true).open(path).map(drop)
        }
        Ok(_) => Ok(()),
    }
}

/// Escapes text for HTML. Names come from file names, so they may contain any character.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}
