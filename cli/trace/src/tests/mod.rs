//! Every included trace, both encodings, and files that are cut, damaged or endless. `cases` has
//! all other defects.

mod cases;
mod hostile;
mod rmm;
mod script;
mod snapshot;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Defect, Event, Trace, TraceError, read, read_to_last_line};

const GOOD: &str = "# alloc-trace v1: a <id> <bytes>\n# name: small\na 0 4\ns 0\na 1 8\nf 0\ns 1\n";

fn parsed(bytes: &[u8]) -> Result<Trace, TraceError> {
    read(Path::new("dir/small.trace"), bytes)
}

/// Returns the complete message for a trace that is refused at `line`.
fn message(bytes: &[u8], line: u64) -> String {
    let error = parsed(bytes).unwrap_err();
    assert_eq!(error.line(), Some(line), "{error}");
    let message = error.to_string();
    assert!(
        message.starts_with(&format!("dir/small.trace:{line}: ")),
        "{message}"
    );
    message
}

fn compressed(text: &str) -> Vec<u8> {
    zstd::encode_all(text.as_bytes(), 3).unwrap()
}

/// Returns a valid trace of `blocks` blocks that are never freed.
fn long_trace(blocks: u32) -> String {
    let mut text = String::new();
    for id in 0..blocks {
        writeln!(text, "a {id} {}", (u64::from(id) * 7919) % 100_003 + 1).unwrap();
    }
    text
}

#[test]
fn a_good_trace_gives_its_name_header_and_events() {
    let trace = parsed(GOOD.as_bytes()).unwrap();
    assert_eq!(trace.name(), "small");
    assert_eq!(trace.header()[1], ("name".to_owned(), "small".to_owned()));
    assert_eq!(trace.allocations(), 2);
    let events = [
        Event::Alloc { id: 0, bytes: 4 },
        Event::Step { number: 0 },
        Event::Alloc { id: 1, bytes: 8 },
        Event::Free { id: 0 },
        Event::Step { number: 1 },
    ];
    assert_eq!(trace.events(), events);
}

#[test]
fn zstd_and_plain_text_give_the_same_trace_whatever_the_name() {
    let plain = parsed(GOOD.as_bytes()).unwrap();
    assert_eq!(parsed(&compressed(GOOD)).unwrap(), plain);
    let two_frames = [compressed(&GOOD[..40]), compressed(&GOOD[40..])].concat();
    assert_eq!(parsed(&two_frames).unwrap(), plain);
}

#[test]
fn the_name_is_the_file_name_without_its_endings() {
    let named = |path: &str| read(Path::new(path), GOOD.as_bytes()).unwrap().name;
    assert_eq!(named("a/b.trace.zst"), "b");
    assert_eq!(named("b.trace"), "b");
    assert_eq!(named("b.c.txt"), "b.c");
    assert_eq!(named("b.zst"), "b");
    assert_eq!(named(".trace"), ".trace");
    assert_eq!(named("b\n.trace"), "b\u{fffd}");
}

#[test]
fn every_carried_trace_is_well_formed() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches")).join("traces");
    let mut traces = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        let trace = Trace::load(&path).unwrap();
        assert!(
            matches!(trace.events().last(), Some(Event::Step { .. })),
            "{}",
            path.display()
        );
        traces += 1;
    }
    assert_eq!(traces, 8);
}

#[test]
fn a_remark_behind_a_step_says_that_it_is_none() {
    let remark = "# between steps\n";
    let text = format!(
        "{remark}a 0 1\n{remark}s 0\nf 0\ns 1\n{remark}a 1 1\ns 2\n# other\n{remark}f 1\ns 3\n"
    );
    let trace = parsed(text.as_bytes()).unwrap();
    let between = (0..5).filter(|number| trace.is_between_steps(*number));
    assert_eq!(between.collect::<Vec<_>>(), [1, 2]);
    assert_eq!(trace.events().len(), 8);
}

#[test]
fn a_missing_file_is_named() {
    let error = Trace::load(Path::new("no/such/file.trace")).unwrap_err();
    assert!(matches!(error.defect(), Defect::NoSuchFile));
    assert_eq!(
        error.to_string(),
        "no/such/file.trace: no such file; check the path"
    );
}

#[test]
fn a_directory_is_refused() {
    let error = Trace::load(Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../benches"
    )))
    .unwrap_err();
    assert!(matches!(error.defect(), Defect::Unreadable(_)), "{error}");
}

#[test]
fn every_proper_prefix_of_a_good_trace_is_refused_unless_it_ends_behind_a_line() {
    for end in 0..GOOD.len() {
        let prefix = &GOOD[..end];
        if parsed(prefix.as_bytes()).is_ok() {
            assert!(
                ["a 0 4\n", "s 0\n"]
                    .iter()
                    .any(|line| prefix.ends_with(line)),
                "{prefix:?}"
            );
        }
    }
}

/// Reads a trace. Returns it, and the line at which it is cut, if it is.
fn up_to_the_cut(bytes: &[u8]) -> (Trace, Option<u64>) {
    let read = read_to_last_line(Path::new("t.trace"), bytes).unwrap();
    let (mut traces, cut) = read;
    (traces.remove(0), cut.map(|cut| cut.line().unwrap()))
}

#[test]
fn a_trace_that_is_cut_short_is_read_to_its_last_whole_line_and_says_so() {
    let (trace, cut) = up_to_the_cut(b"a 0 4\na 1 40");
    assert_eq!(trace.events(), [Event::Alloc { id: 0, bytes: 4 }]);
    assert_eq!(cut, Some(2));
    assert!(trace.notes()[0].contains("cut short at line 2"));
    let (trace, cut) = up_to_the_cut(b"s 0\na 0 4\n");
    assert_eq!(trace.events().last(), Some(&Event::Step { number: 1 }));
    assert_eq!(cut, Some(2));
    let (trace, cut) = up_to_the_cut(b"# allocs: 2  frees: 0\na 0 4\n");
    assert_eq!((trace.events().len(), cut), (1, Some(2)));
    let (trace, cut) = up_to_the_cut(GOOD.as_bytes());
    assert!(trace.notes().is_empty() && cut.is_none());
}

#[test]
fn a_cut_that_leaves_nothing_and_a_header_that_promises_less_are_errors() {
    for text in ["a 0", "# allocs: 1  frees: 0\na 0 4\na 1 4\n"] {
        read_to_last_line(Path::new("t.trace"), text.as_bytes()).unwrap_err();
    }
}

#[test]
fn of_a_zstd_stream_that_is_cut_all_whole_lines_are_read() {
    let whole = compressed(&long_trace(60_000));
    let (trace, cut) = up_to_the_cut(&whole[..whole.len() - 1]);
    let last = cut.unwrap() as usize;
    assert!(last > 10_000 && trace.events().len() > last - 10, "{last}");
}

#[test]
fn an_endless_line_is_refused_without_reading_it_whole() {
    let long = "# ".to_owned() + &"x".repeat(70_000) + "\na 0 4\n";
    assert!(message(long.as_bytes(), 1).contains("the line is longer than"));
}

#[test]
fn what_is_quoted_from_the_file_is_short_and_printable() {
    let message = message(format!("\u{1b}[31m{}\n", "x".repeat(1000)).as_bytes(), 1);
    assert!(message.len() < 250, "{message}");
    assert!(!message.contains('\u{1b}'), "{message:?}");
}

#[test]
fn a_zstd_stream_cut_anywhere_is_refused() {
    let whole = compressed(&long_trace(60_000));
    assert!(parsed(&whole).is_ok());
    for end in (0..whole.len())
        .step_by(whole.len() / 97)
        .chain([1, 4, whole.len() - 1])
    {
        let error = parsed(&whole[..end]).unwrap_err();
        if end > 4 {
            assert!(
                matches!(error.defect(), Defect::ZstdCut),
                "cut at {end}: {error}"
            );
        }
    }
}

#[test]
fn a_damaged_zstd_stream_is_refused() {
    let mut reserved_bits = compressed(GOOD);
    reserved_bits[4] |= 0x08;
    let trailing_garbage = [compressed(GOOD), b"garbage".to_vec()].concat();
    let mut wrong_block = compressed(&long_trace(60_000));
    wrong_block[4000..4100].fill(0xff);
    for bytes in [reserved_bits, trailing_garbage, wrong_block] {
        let error = parsed(&bytes).unwrap_err();
        let refused = !matches!(error.defect(), Defect::EmptyFile | Defect::NoSuchFile);
        assert!(refused && error.line().is_some(), "{error}");
    }
    let error = parsed(&[0x28, 0xB5, 0x2F, 0xFD, 0xff, 0xff, 0xff, 0xff]).unwrap_err();
    assert!(
        matches!(error.defect(), Defect::ZstdDamaged(_) | Defect::ZstdCut),
        "{error}"
    );
}
