//! Pages of `larder replay`, `larder plan` and `larder versus`, opened in a headless browser.
//!
//! Skipped without Chromium (`LARDER_BROWSER`, or one of its usual names in the path).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

#[cfg(unix)]
use crate::commands::files::make;
use crate::replay_command::{carried, json, stderr};

/// Lists the parts of a page that scroll sideways, except text as on a terminal.
const CLIPPED: &str = "<script>{
for (const folded of document.querySelectorAll('details')) folded.open = true;
const root = document.documentElement;
const scrolls = part => part.localName != 'pre' && getComputedStyle(part).overflowX == 'auto';
const all = [root, ...[...document.querySelectorAll('body *')].filter(scrolls)];
const parts = all.filter(part => part.scrollWidth > part.clientWidth);
root.dataset.clipped = parts.map(part => `${part.className || part.tagName}: ${part.scrollWidth} in ${part.clientWidth}`).join('; ');
}</script>";

/// Reads the number of a page's colours, and the hint at the pointer.
const LOOK: &str = "<script>{
const say = (name, value) => { document.documentElement.dataset[name] = value; };
const map = document.querySelectorAll('canvas')[1];
const colours = new Set(new Uint32Array(map.getContext('2d').getImageData(0, 0, map.width, map.height).data.buffer));
say('colours', colours.size);
const box = map.getBoundingClientRect();
const hint = document.querySelector('.hint');
for (let x = 100; x < 1000 && !hint.textContent.startsWith('block'); x += 10)
  map.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + x, clientY: box.bottom - 30 }));
say('hint', hint.textContent);
}</script>";

fn browser() -> Option<String> {
    let named = std::env::var("LARDER_BROWSER").ok();
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let all = named.into_iter().chain(names.map(str::to_owned));
    let runs = |name: &String| Command::new(name).arg("--version").output().is_ok();
    let found = all.into_iter().find(runs);
    if found.is_none() {
        eprintln!("skipped: there is no Chromium");
    }
    found
}

/// Opens a page with a script at its end. Returns the page once the scripts have run.
fn opened(browser: &str, folder: &TempDir, page: &Path, look: &str) -> String {
    let html = fs::read_to_string(page).unwrap();
    dom(browser, folder, &(html + look))
}

/// Checks that nothing on a page scrolls sideways on a phone, a tablet and a wide screen. The page is
/// in a frame, since a window is at least 500 pixels wide.
fn fits(browser: &str, folder: &TempDir, page: &Path) {
    let html = fs::read_to_string(page).unwrap() + CLIPPED;
    let html = html.replace('&', "&amp;").replace('"', "&quot;");
    for width in [400, 900, 1600] {
        let framed = format!(
            "<!doctype html><iframe style=\"border:0;width:{width}px;height:2000px\" srcdoc=\"{html}\"></iframe>\
            <script>onload = () => Object.assign(document.documentElement.dataset,
            document.querySelector('iframe').contentDocument.documentElement.dataset)</script>"
        );
        let dom = dom(browser, folder, &framed);
        let clipped = attribute(&dom, "<html", "data-clipped");
        assert_eq!(clipped, "", "at {width} pixels");
    }
}

/// Opens a page in a wide window.
fn dom(browser: &str, folder: &TempDir, html: &str) -> String {
    let looked_at = folder.path().join("looked-at.html");
    fs::write(&looked_at, html).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .arg("--window-size=1200,2000")
        .arg("--virtual-time-budget=5000")
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}", looked_at.display()))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Returns an attribute of the first element that begins with this text.
fn attribute<'d>(dom: &'d str, element: &str, name: &str) -> &'d str {
    let start = dom
        .find(element)
        .unwrap_or_else(|| panic!("no {element}: {dom:.600}"));
    let tag = dom[start..].split('>').next().unwrap();
    let value = tag.split(&format!("{name}=\"")).nth(1);
    value
        .unwrap_or_else(|| panic!("no {name}: {tag}"))
        .split('"')
        .next()
        .unwrap()
}

fn number(dom: &str, element: &str, name: &str) -> u64 {
    attribute(dom, element, name).parse().unwrap()
}

fn larder(command: &str, page: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args([command, "--json", "--html"])
        .arg(page)
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    json(&output)
}

#[test]
fn a_page_shows_the_figures_of_its_run_and_clips_nothing() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let trace = carried("resnet50_train");
    let device = [
        "--device-bytes",
        "6GiB",
        "--smallest-device",
        "--passes",
        "3",
    ];
    let runs = [
        vec![trace.as_str()],
        [&device[..], &[trace.as_str()]].concat(),
    ];
    for arguments in runs {
        let rows = larder("replay", &page, &arguments);
        let dom = opened(&browser, &folder, &page, LOOK);
        assert!(rows.len() >= 4);
        for row in &rows {
            let element = format!("<label data-allocator={}", row["allocator"]);
            let figure = |name| number(&dom, &element, name);
            assert_eq!(
                figure("data-peak-reserved"),
                row["peak_reserved_bytes"],
                "{row}"
            );
            assert_eq!(figure("data-blocks"), row["allocations"], "{row}");
            let regions = || {
                row["driver_allocations"].as_u64().unwrap() + row["driver_frees"].as_u64().unwrap()
            };
            let calls = row["driver_calls"].as_u64().unwrap_or_else(regions);
            assert_eq!(figure("data-calls"), calls, "{row}");
            if row["completed"] == true {
                assert_eq!(figure("data-peak-live"), row["peak_live_bytes"], "{row}");
            }
        }
        assert!(number(&dom, "<html", "data-colours") > 5);
        fits(&browser, &folder, &page);
        let hint = attribute(&dom, "<html", "data-hint");
        let words = ["block ", "bytes)", "event ", "step", "stream", "address 0x"];
        assert!(
            words.iter().all(|word| hint.contains(word)),
            "{hint}: {dom:.300}"
        );
    }
}

#[test]
fn a_page_names_the_device_and_the_refused_request_of_a_snapshot() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (page, snapshot) = (
        folder.path().join("page.html"),
        folder.path().join("oom.pickle"),
    );
    let refused = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args("replay --allocator pytorch --device-bytes 5GiB --snapshot".split(' '))
        .args([snapshot.to_str().unwrap(), &carried("resnet50_train")])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    larder("replay", &page, &[snapshot.to_str().unwrap()]);
    let dom = opened(&browser, &folder, &page, LOOK);
    let label = attribute(&dom, "<canvas", "aria-label");
    let marks = "; device 5.00 GiB; refused 49.0 MiB after event 496";
    assert!(label.ends_with(marks), "{label}");
}

#[test]
fn a_packing_is_drawn_with_its_height_and_lower_bound() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let problem = folder.path().join("small.csv");
    let lifetimes = "id,lower,upper,size\n0,0,4,100\n1,2,6,50\n2,4,9,120\n3,6,9,1\n";
    fs::write(&problem, lifetimes).unwrap();
    let rows = larder("plan", &page, &[problem.to_str().unwrap()]);
    let dom = opened(&browser, &folder, &page, LOOK);
    let element = "<label data-allocator=\"height\"";
    assert_eq!(
        number(&dom, element, "data-peak-reserved"),
        rows[0]["height"]
    );
    assert_eq!(
        number(&dom, element, "data-planned"),
        rows[0]["lower_bound"]
    );
    assert_eq!(number(&dom, element, "data-peak-live"), rows[0]["max_live"]);
    assert_eq!(number(&dom, element, "data-blocks"), rows[0]["buffers"]);
    let hint = attribute(&dom, "<html", "data-hint");
    assert!(
        hint.starts_with("block ") && hint.contains("tick 0 to 4"),
        "{hint}"
    );
    fits(&browser, &folder, &page);
}

/// Reads the rows of a page with bars: the text of each cell, and for each bar its length, the
/// start and the end of its range line, and its look. Lengths are parts of the longest bar.
const LOOK_AT_BARS: &str = "<script>{
const root = document.documentElement;
const part = (whole, one) => (one - whole.left) / whole.width;
const rows = [...document.querySelectorAll('tr')].filter(row => row.querySelector('.bar')).map(row => ({
  cells: [row.parentElement.rows[0], ...row.cells].map(cell => cell.textContent),
  bars: [...row.querySelectorAll('.bar')].map(bar => {
    const whole = bar.getBoundingClientRect(), style = getComputedStyle(bar.firstChild);
    const [length, range = length] = [...bar.children].map(one => one.getBoundingClientRect());
    const look = style.backgroundColor;
    return { length: part(whole, length.right), from: part(whole, range.left), to: part(whole, range.right), look, cut: style.clipPath != 'none' };
  }),
}));
root.dataset.rows = JSON.stringify(rows).replaceAll('\"', '`');
}</script>";

/// Makes a worker that takes 0.01 s and a MiB more in each round.
#[cfg(unix)]
fn slower_each_round(folder: &TempDir, allocator: &str, hundredths: u32) {
    let count = folder.path().join(format!("{allocator}-count"));
    let count = count.display();
    let script = [
        format!("n=$(cat '{count}'-$1 2>/dev/null || echo 0)"),
        format!("echo $((n + 1)) > '{count}'-$1"),
        format!("echo '{{\"workload\":\"'$1'\",\"allocator\":\"{allocator}\",\"seconds\":'\\"),
        format!("$(({hundredths} + n))'e-2,\"operations\":10000000,\"answer\":7,'\\"),
        "'\"peak_rss_bytes\":'$(((4 + n) << 20))'}'".to_owned(),
    ];
    let script = script.each_ref().map(String::as_str);
    make(&format!("worker {allocator}"), &script, folder.path());
}

fn cells(row: &Value) -> [String; 10] {
    let figure = |name: &str| row[name].as_f64().unwrap();
    let mib = |name: &str| figure(name) / f64::from(1 << 20);
    let (min, max) = (figure("seconds_min"), figure("seconds_max"));
    [
        row["workload"].as_str().unwrap().to_owned(),
        row["allocator"].as_str().unwrap().to_owned(),
        String::new(),
        format!("{:.1}", figure("ns_per_operation")),
        format!("{:.1} to {:.1}", 100.0 * min, 100.0 * max),
        format!("{:.2}", figure("ratio_to_best")),
        String::new(),
        format!("{:.1}", mib("peak_rss_bytes")),
        "4.0 to 6.0".to_owned(),
        format!("{:.2}", figure("peak_rss_ratio_to_best")),
    ]
}

/// Checks that bars are as long as their figures. The longest time bar is 84 ns, four times the
/// shortest; the longest memory bar is the highest peak.
fn bars_agree(seen: &Value, row: &Value) {
    let nanoseconds = |name: &str| row[name].as_f64().unwrap() * 100.0;
    let near = |bar: usize, name: &str, expected: f64| {
        let part = seen["bars"][bar][name].as_f64().unwrap();
        assert!(
            (part - expected.min(1.0)).abs() < 0.02,
            "{name} {expected}: {seen}"
        );
    };
    near(0, "length", nanoseconds("seconds") / 84.0);
    near(1, "length", 5.0 / 6.0);
    near(1, "from", 4.0 / 6.0);
    near(1, "to", 1.0);
    let cut = nanoseconds("seconds") > 84.0;
    assert_eq!(seen["bars"][0]["cut"], cut, "{seen}");
    if !cut {
        near(0, "from", nanoseconds("seconds_min") / 84.0);
        near(0, "to", nanoseconds("seconds_max") / 84.0);
    }
}

#[cfg(unix)]
#[test]
fn bars_are_as_long_as_the_figures_of_the_run_and_ours_have_a_colour_of_their_own() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let seconds = [
        ("system", 30),
        ("larder", 20),
        ("mimalloc2", 95),
        ("jemalloc", 21),
    ];
    for (allocator, hundredths) in seconds {
        slower_each_round(&folder, allocator, hundredths);
    }
    make(
        "worker talc echo broken '<b>' >&2; exit 3",
        &[],
        folder.path(),
    );
    let output = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args("versus --rounds 3 --json --workload boxes --workload map --html".split(' '))
        .arg(&page)
        .arg("--workers")
        .arg(folder.path())
        .output()
        .unwrap();
    let rows = json(&output);
    assert_eq!(rows.len(), 10, "{}", stderr(&output));
    let dom = opened(&browser, &folder, &page, LOOK_AT_BARS);
    assert!(dom.contains("failed: boxes on talc (fat): exit status: 3: broken &lt;b&gt;"));
    let seen = attribute(&dom, "<html", "data-rows").replace('`', "\"");
    let seen: Vec<Value> = serde_json::from_str(&seen).unwrap();
    let drawn = rows.iter().filter(|row| row["failed"].is_null());
    let drawn: Vec<&Value> = drawn.collect();
    assert_eq!(seen.len(), drawn.len());
    let mut looks = BTreeSet::new();
    for (seen, row) in seen.iter().zip(drawn) {
        assert_eq!(seen["cells"], serde_json::json!(cells(row)));
        bars_agree(seen, row);
        let ours = row["allocator"] == "larder";
        looks.insert((ours, seen["bars"][0]["look"].to_string()));
    }
    let colours: BTreeSet<&String> = looks.iter().map(|(_, look)| look).collect();
    assert_eq!((looks.len(), colours.len()), (2, 2), "{looks:?}");
    fits(&browser, &folder, &page);
}

#[test]
fn kept_rows_of_versus_give_a_page_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let rows = format!(
        "{}/../benches/results/2026-11-25-versus.jsonl",
        env!("CARGO_MANIFEST_DIR")
    );
    let kept = fs::read_to_string(&rows).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["versus", "--summary", &rows, "--html"])
        .arg(&page)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let html = fs::read_to_string(&page).unwrap();
    let bars = html.matches("<div class=\"bar").count();
    let timed = kept
        .lines()
        .filter(|line| !line.contains(",\"ratio_to_best\":null"));
    assert_eq!(bars, 2 * timed.count());
    for fetching in ["<link", "src=", "href=", "url(", "fetch(", "http:"] {
        assert!(!html.contains(fetching), "{fetching}");
    }
    if let Some(browser) = browser() {
        fits(&browser, &folder, &page);
    }
}
