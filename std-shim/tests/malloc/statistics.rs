//! The report about the heap when a process ends.

use crate::program::Heap::{Inside, Linked, Preloaded};
use crate::program::{End, Heap, command, compile, run};

const MIB: u64 = 1 << 20;

/// The program's live blocks: 100 of 1000 bytes, and one of 10 MiB.
const LIVE: u64 = 100_000 + 10 * MIB;

fn with_stats(heap: Heap, mode: &str, stats: &str) -> End {
    let mut command = command(compile("holds.c", heap), heap);
    command.env("LARDER_MODE", mode).env("LARDER_STATS", stats);
    let end = run(&mut command);
    assert!(end.status.success(), "{}", end.text());
    end
}

/// Returns the number that a report has for a name.
fn number(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().map(str::split_whitespace);
    let line = lines.find_map(|mut line| (line.next() == Some(name)).then_some(line));
    let number = line.and_then(|mut line| line.next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {name}: {text}"))
}

#[test]
fn each_process_says_at_its_end_what_its_heap_holds_and_its_peak() {
    for heap in [Preloaded, Linked, Inside] {
        for mode in ["balanced", "hardened"] {
            let end = with_stats(heap, mode, "yes");
            let (processes, said) = (end.text(), end.complaints());
            let (_, of_parent) = said.rsplit_once("larder: ").unwrap();
            for process in processes.split_whitespace() {
                let line = format!("larder: the heap of process {process} at its end:\n");
                assert_eq!(said.matches(&line).count(), 1, "{said}");
            }
            assert!(said.lines().all(|line| line.len() <= 80), "{said}");
            assert!(said.lines().count() <= 2 * 12, "{said}");
            let number = |name| number(of_parent, name);
            let live = number("live_bytes");
            assert!((LIVE..LIVE + MIB).contains(&live), "{said}");
            assert!((10 * MIB..live).contains(&number("large_bytes")), "{said}");
            let peak = number("peak_bytes");
            assert!((50 * MIB..80 * MIB).contains(&peak), "{said}");
            assert!(number("resident_bytes") < peak, "{said}");
            // A hardened heap caches nothing; its free blocks are in quarantine.
            let kept = number("kept_bytes");
            assert_eq!(kept >= 30 * 3000, mode == "balanced", "{said}");
        }
    }
}

#[test]
fn nothing_is_said_where_nobody_asks() {
    for (stats, said) in [
        ("no", ""),
        (
            "exit",
            "larder: LARDER_STATS is ignored: it must be yes or no\n",
        ),
    ] {
        assert_eq!(with_stats(Preloaded, "balanced", stats).complaints(), said);
    }
}
