//! Pages of `larder replay` and `larder plan`, opened in a browser without a window.
//!
//! Where there is no Chromium (`LARDER_BROWSER`, or one of its names on the path), these tests say so and do nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::replay_command::{carried, json, stderr};

/// Reads what a page shows: whether it is too wide, what is painted, and what stands under the pointer.
const LOOK: &str = "<script>{
const say = (name, value) => { document.documentElement.dataset[name] = value; };
const root = document.documentElement;
const wide = [root, ...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth);
say('clipped', wide.length);
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

/// What a page is once its script has run, in a window 1200 pixels wide.
fn opened(browser: &str, folder: &TempDir, page: &Path) -> String {
    let mut html = fs::read_to_string(page).unwrap();
    html.push_str(LOOK);
    let looked_at = folder.path().join("looked-at.html");
    fs::write(&looked_at, html).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--window-size=1200,2000", "--virtual-time-budget=5000"])
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

/// An attribute of the element that begins with some text.
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
        let dom = opened(&browser, &folder, &page);
        assert!(rows.len() >= 4);
        for row in &rows {
            let element = format!("<tr data-allocator={}", row["allocator"]);
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
        assert_eq!(number(&dom, "<html", "data-clipped"), 0);
        assert!(number(&dom, "<html", "data-colours") > 5);
        let hint = attribute(&dom, "<html", "data-hint");
        let words = ["block ", "bytes)", "event ", "step", "stream", "address 0x"];
        assert!(
            words.iter().all(|word| hint.contains(word)),
            "{hint}: {dom:.300}"
        );
    }
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
    let dom = opened(&browser, &folder, &page);
    let element = "<tr data-allocator=\"plan\"";
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
}
