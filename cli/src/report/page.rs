//! One self-contained HTML page, without external resources.

use std::fs::{self, File};
use std::io;
use std::path::Path;

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>larder</title>
<style>
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #e4e4e4; --group: #bbb; --bar: #f2f2f2; --red: #b00020; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #16181a; --line: #3a3a3a; --group: #666; --bar: #2a2c2e; --red: #ff8095; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide, pre { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .2rem .35rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { white-space: normal; vertical-align: bottom; }
th.text, td.text { text-align: left; }
tr.first td { border-top: 2px solid var(--group); }
td.no { color: var(--red); font-weight: 600; }
canvas { display: block; width: 100%; touch-action: none; cursor: crosshair; }
.legend { margin: .5rem 0; } .legend svg { vertical-align: middle; }
.key span { margin-right: 1.2rem; white-space: nowrap; }
i { display: inline-block; width: .9rem; height: .9rem; margin-right: .35rem; vertical-align: -2px; border: 1px solid #999; }
.bar { position: relative; width: 9rem; height: .85rem; background: var(--bar); print-color-adjust: exact; }
.bar b, .bar u { position: absolute; left: 0; top: 0; bottom: 0; }
.bar u { top: .2rem; bottom: .2rem; border: solid var(--ink); border-width: 0 1px; background: linear-gradient(var(--ink), var(--ink)) center / 100% 1px no-repeat; }
.cut { clip-path: polygon(0 0, 100% 0, calc(100% - 5px) 25%, 100% 50%, calc(100% - 5px) 75%, 100% 100%, 0 100%); }
.s1 { background-image: repeating-linear-gradient(45deg, #fffb 0 2px, #fff0 2px 6px); }
.s2 { background-image: repeating-linear-gradient(135deg, #fffb 0 2px, #fff0 2px 6px); }
.s3 { background-image: repeating-linear-gradient(90deg, #fffb 0 2px, #fff0 2px 5px); }
.s4 { background-image: repeating-linear-gradient(0deg, #fffb 0 2px, #fff0 2px 5px); }
h3 { font-size: 1rem; margin: 1rem 0 .2rem; }
.hint { display: none; position: fixed; white-space: pre; background: var(--paper); border: 1px solid #888; padding: .3rem .5rem; font-size: 13px; pointer-events: none; }
@media (max-width: 600px) {
  body { margin: 1rem auto; padding: 0 .6rem; }
  .wide tr { display: flex; flex-wrap: wrap; column-gap: 1rem; border-bottom: 1px solid var(--line); padding: .3rem 0; }
  .wide thead { display: none; } .wide td, .wide tr.first td { border: 0; padding: 0; } .wide td[data-of]::before { content: attr(data-of) \" \"; color: #888; }
  .legend th, .legend td { padding: .2rem; font-size: 11px; white-space: normal; } .legend svg { width: 20px; }
}
@media print { .controls { display: none; } canvas, tr { break-inside: avoid; } }
</style>
</head>
<body>
";

/// Returns a page with this body, under a heading.
pub(crate) fn page(heading: &str, body: &str) -> String {
    format!("{HEAD}<h1>{heading}</h1>\n{body}</body>\n</html>\n")
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
