//! The report as one self-contained HTML page: no script, nothing fetched.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::chart::{ChartError, chart, line_colour, live_colour};
use super::{Kind, Report, calls, columns, mean_text};

/// A page that could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HtmlError {
    /// The file refused.
    #[error("{}: cannot write the page: {source}", path.display())]
    File {
        /// Where the page was to go.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A chart failed.
    #[error(transparent)]
    Chart(#[from] ChartError),
}

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>larder replay</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e4e4; }
th.text, td.text { text-align: left; }
tr.first td { border-top: 2px solid #bbb; }
td.no { color: #b00020; font-weight: 600; }
svg { max-width: 100%; height: auto; }
.legend span { margin-right: 1.2rem; white-space: nowrap; }
.legend i { display: inline-block; width: .9rem; height: .9rem; margin-right: .35rem; vertical-align: -2px; }
</style>
</head>
<body>
<h1>Replayed allocation traces</h1>
";

/// Finds out whether a page can be written to `path`, before the work for it begins.
///
/// An earlier page stays as it is, and nothing new is left behind. Only files are tried: opening
/// and closing a pipe would already tell its reader that all is over.
///
/// # Errors
/// The file cannot be created or opened for writing.
pub fn try_html(path: &Path) -> Result<(), HtmlError> {
    let refused = |source| HtmlError::File {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(_) => {
            File::create_new(path).map_err(refused)?;
            fs::remove_file(path).map_err(refused)
        }
        Ok(_) if path.is_file() || path.is_dir() => {
            let opened = File::options().write(true).open(path);
            opened.map(drop).map_err(refused)
        }
        Ok(_) => Ok(()),
    }
}

/// Writes the page to `path`, over whatever is there.
///
/// # Errors
/// The file cannot be written, or a chart cannot be drawn.
pub fn write_html(report: &Report, path: &Path) -> Result<(), HtmlError> {
    let page = page(report)?;
    fs::write(path, page).map_err(|source| HtmlError::File {
        path: path.to_owned(),
        source,
    })
}

/// The page as text.
pub(super) fn page(report: &Report) -> Result<String, ChartError> {
    let mut page = String::from(HEAD);
    let device = match report.options.device_bytes {
        Some(bytes) => format!("a device of {bytes} bytes"),
        None => "a device without limit".to_owned(),
    };
    page.push_str(&format!("<p>On {device}. <em>Live</em> is what the program asked for; <em>reserved</em> is what the allocator took from the device for it.</p>\n"));
    push_table(&mut page, report);
    push_means(&mut page, report);
    push_calls(&mut page, report);
    for (trace, curves) in report.by_trace() {
        page.push_str(&format!("<h2>{}</h2>\n", escape(trace)));
        page.push_str(&legend(curves.iter().map(|(row, _)| row.allocator)));
        page.push_str(&chart(&curves)?);
        page.push('\n');
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn push_table(page: &mut String, report: &Report) {
    let columns = columns(report);
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for column in &columns {
        page.push_str(&format!(
            "<th{}>{}</th>",
            class(column.kind),
            column.heading
        ));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    let mut previous: Option<&str> = None;
    for row in report.rows() {
        let first = previous.is_some_and(|trace| trace != row.trace);
        previous = Some(&row.trace);
        page.push_str(if first {
            "<tr class=\"first\">"
        } else {
            "<tr>"
        });
        for column in &columns {
            let class = if column.kind == Kind::Completed && !row.completed {
                " class=\"text no\""
            } else {
                class(column.kind)
            };
            let cell = escape(&(column.cell)(row));
            page.push_str(&format!("<td{class}>{cell}</td>"));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

fn push_means(page: &mut String, report: &Report) {
    let means = report.means();
    if means.is_empty() {
        return;
    }
    page.push_str("<h2>Geometric mean of reserved/live</h2>\n<ul>\n");
    for mean in &means {
        page.push_str(&format!(
            "<li>{}: {}</li>\n",
            escape(mean.allocator),
            mean_text(mean)
        ));
    }
    page.push_str("</ul>\n");
}

fn push_calls(page: &mut String, report: &Report) {
    let Some((heading, lines)) = calls::lines(report) else {
        return;
    };
    page.push_str(&format!("<p>Below: {heading}.</p>\n<ul>\n"));
    for line in &lines {
        page.push_str(&format!("<li>{}</li>\n", escape(line)));
    }
    page.push_str("</ul>\n");
}

fn legend<'a>(allocators: impl Iterator<Item = &'a str>) -> String {
    let mut legend = String::from("<p class=\"legend\">");
    legend.push_str(&swatch(&live_colour(), "live"));
    for (index, allocator) in allocators.enumerate() {
        legend.push_str(&swatch(&line_colour(index), allocator));
    }
    legend.push_str("</p>\n");
    legend
}

fn swatch(colour: &str, label: &str) -> String {
    format!(
        "<span><i style=\"background:{colour}\"></i>{}</span>",
        escape(label)
    )
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Text | Kind::Completed => " class=\"text\"",
        Kind::Number => "",
    }
}

/// Names come from file names and may hold anything.
fn escape(text: &str) -> String {
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
