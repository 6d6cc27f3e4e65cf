//! Every defect by name, every carried trace, and both encodings.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Defect, Event, Trace, TraceError, read, read_to_last_line};
use crate::MAX_BYTES;

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

fn defect(text: &str, line: u64) -> Defect {
    message(text.as_bytes(), line);
    parsed(text.as_bytes()).unwrap_err().into_defect()
}

fn compressed(text: &str) -> Vec<u8> {
    zstd::encode_all(text.as_bytes(), 3).unwrap()
}

/// Returns a valid trace of `blocks` blocks, never freed.
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
fn a_trace_without_steps_or_header_is_legal() {
    assert_eq!(parsed(b"a 0 1\nf 0\n").unwrap().events().len(), 2);
    assert_eq!(parsed(b"s 0\n").unwrap().allocations(), 0);
}

#[test]
fn a_remark_between_events_is_skipped_and_counted_as_a_line() {
    let trace = parsed(b"a 0 1\n# here the model starts\nf 0\n").unwrap();
    assert_eq!((trace.header().len(), trace.events().len()), (0, 2));
    assert!(matches!(
        defect("a 0 1\n# remark\nf 1\n", 3),
        Defect::UnknownId { .. }
    ));
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
fn an_empty_file_is_refused_in_both_encodings() {
    assert!(matches!(defect("", 1), Defect::EmptyFile));
    assert!(message(&compressed(""), 1).contains("empty"));
}

#[test]
fn a_recording_without_its_last_line_is_noted_and_others_have_none() {
    let noted = |text: &str| {
        let trace = parsed(text.as_bytes()).unwrap();
        trace.notes().iter().any(|note| note.contains("was killed"))
    };
    let recorded = "# alloc-trace v1\n# recorded: larder 0.1.0\na 0 4\n";
    assert!(noted(recorded));
    assert!(!noted(&format!(
        "{recorded}# recording ended: the program exits\n"
    )));
    assert!(!noted(
        "# alloc-trace v1\n# recorded: torch 2.15.0\na 0 4\n"
    ));
}

#[test]
fn header_lines_alone_are_no_trace() {
    assert!(matches!(defect("# name: x\n# more\n", 2), Defect::NoEvents));
}

#[test]
fn another_format_version_is_refused() {
    assert!(matches!(
        defect("# alloc-trace v2: x\na 0 1\n", 1),
        Defect::UnknownVersion { .. }
    ));
}

#[test]
fn a_free_of_a_block_never_allocated_is_refused() {
    assert!(matches!(
        defect("a 0 4\nf 1\n", 2),
        Defect::UnknownId {
            id: 1,
            allocated: 1
        }
    ));
}

#[test]
fn a_second_free_is_refused() {
    assert!(matches!(
        defect("a 0 4\nf 0\nf 0\n", 3),
        Defect::DoubleFree { id: 0 }
    ));
}

#[test]
fn an_id_that_is_not_the_next_one_is_refused() {
    let skipped = defect("a 0 4\na 2 4\n", 2);
    assert!(matches!(
        skipped,
        Defect::IdOutOfOrder {
            found: 2,
            expected: 1
        }
    ));
    let reused = defect("a 0 4\nf 0\na 0 4\n", 3);
    assert!(matches!(
        reused,
        Defect::IdOutOfOrder {
            found: 0,
            expected: 1
        }
    ));
    assert!(matches!(defect("a 1 4\n", 1), Defect::IdOutOfOrder { .. }));
}

#[test]
fn what_is_not_a_number_is_refused() {
    for line in [
        "a x 4", "a 0 4k", "a 0 -4", "a 0 +4", "a 0 4.0", "f -1", "s one",
    ] {
        let found = defect(&format!("{line}\n"), 1);
        assert!(
            matches!(found, Defect::NotANumber { .. }),
            "{line}: {found}"
        );
    }
}

#[test]
fn a_number_above_its_limit_is_refused_and_the_limit_is_not() {
    assert!(parsed(format!("a 0 {MAX_BYTES}\n").as_bytes()).is_ok());
    let above = MAX_BYTES + 1;
    for line in [
        &format!("a 0 {above}"),
        "a 0 18446744073709551616",
        "a 4294967295 1",
        "f 4294967296",
        "s 99999999999999999999999",
    ] {
        let found = defect(&format!("{line}\n"), 1);
        assert!(
            matches!(found, Defect::NumberTooBig { .. }),
            "{line}: {found}"
        );
    }
}

#[test]
fn live_bytes_beyond_the_limit_are_refused() {
    let text = format!("a 0 {MAX_BYTES}\nf 0\na 1 {MAX_BYTES}\na 2 1\n");
    assert!(matches!(defect(&text, 4), Defect::TooMuchLive));
}

#[test]
fn missing_and_extra_fields_are_refused() {
    for line in ["a", "a 0", "f", "s"] {
        let found = defect(&format!("{line}\n"), 1);
        assert!(
            matches!(found, Defect::MissingField { .. }),
            "{line}: {found}"
        );
    }
    for line in ["a 0 4 4", "f 0 4", "s 0 0"] {
        let found = defect(&format!("{line}\n"), 1);
        assert!(
            matches!(found, Defect::ExtraField { .. }),
            "{line}: {found}"
        );
    }
}

#[test]
fn an_unknown_letter_is_refused() {
    for line in ["x 0", "A 0 4", "alloc 0 4", "a\t0\t4", "0 4"] {
        let found = defect(&format!("{line}\n"), 1);
        assert!(
            matches!(found, Defect::UnknownEvent { .. }),
            "{line}: {found}"
        );
    }
}

#[test]
fn a_stray_blank_is_named_with_its_place() {
    for (line, expected) in [
        (" a 0 5", "begins with a blank"),
        ("  f 0", "begins with a blank"),
        ("a  0 5", "has two blanks in a row"),
        ("a 0  5", "has two blanks in a row"),
        ("s  0", "has two blanks in a row"),
        ("a 0 5  ", "has two blanks in a row"),
        ("a 0 5 ", "ends with a blank"),
        ("a 0 ", "ends with a blank"),
        ("f ", "ends with a blank"),
    ] {
        match defect(&format!("{line}\n"), 1) {
            Defect::StrayBlank { place } => assert_eq!(place, expected, "{line:?}"),
            other => panic!("{line:?}: {other}"),
        }
    }
}

#[test]
fn a_zero_byte_block_is_refused() {
    assert!(matches!(defect("a 0 0\n", 1), Defect::ZeroBytes { id: 0 }));
}

#[test]
fn steps_that_do_not_count_up_are_refused() {
    assert!(matches!(
        defect("s 1\n", 1),
        Defect::StepOutOfOrder {
            found: 1,
            expected: 0
        }
    ));
    assert!(matches!(
        defect("s 0\ns 0\n", 2),
        Defect::StepOutOfOrder { .. }
    ));
    assert!(matches!(
        defect("s 0\ns 2\n", 2),
        Defect::StepOutOfOrder { .. }
    ));
}

#[test]
fn a_last_step_that_is_not_closed_means_a_cut_file() {
    assert!(matches!(
        defect("s 0\na 0 1\nf 0\n", 3),
        Defect::NoClosingStep
    ));
}

#[test]
fn a_cut_right_behind_a_step_shows_by_the_counts_in_the_header() {
    let header = "# allocs: 2  frees: 1  peak_live_bytes: 12\n";
    assert!(parsed(format!("{header}a 0 4\ns 0\na 1 8\nf 0\ns 1\n").as_bytes()).is_ok());
    let cut = defect(&format!("{header}a 0 4\ns 0\n"), 3);
    assert!(matches!(
        cut,
        Defect::HeaderMismatch {
            what: "allocs",
            promised: 2,
            found: 1
        }
    ));
    let fewer_frees = defect(&format!("{header}a 0 4\ns 0\na 1 8\ns 1\n"), 5);
    assert!(matches!(
        fewer_frees,
        Defect::HeaderMismatch {
            what: "frees",
            promised: 1,
            found: 0
        }
    ));
    assert!(parsed(b"# allocs: some\na 0 4\n").is_ok());
}

#[test]
fn a_last_line_without_newline_means_a_cut_file() {
    assert!(matches!(defect("a 0 4\na 1 40", 2), Defect::NoNewline));
    let mid_character = [b"a 0 4\n# ".as_slice(), &"é".as_bytes()[..1]].concat();
    assert!(message(&mid_character, 2).contains("no newline"));
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

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    assert!(message(b"a 0 4\n\xff\xfe\n", 2).contains("UTF-8"));
    assert!(message(b"\x1f\x8b\x08\xff\xff", 1).contains("UTF-8"));
}

#[test]
fn line_ends_of_windows_and_empty_lines_make_no_difference() {
    let plain = parsed(GOOD.as_bytes()).unwrap();
    for text in [
        GOOD.replace('\n', "\r\n"),
        GOOD.replace('\n', "\n\n"),
        GOOD.replace('\n', "\r\n  \r\n"),
    ] {
        assert_eq!(parsed(text.as_bytes()).unwrap(), plain);
    }
    assert!(matches!(defect("\n\r\n", 2), Defect::NoEvents));
}

/// Reads a text. Returns the trace, and the line at which it is cut.
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
    assert!(matches!(defect(&long, 1), Defect::LineTooLong { .. }));
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
fn a_zstd_stream_cut_late_names_a_late_line() {
    let whole = compressed(&long_trace(60_000));
    let error = parsed(&whole[..whole.len() - 1]).unwrap_err();
    assert!(error.line().unwrap() > 10_000, "{error}");
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

#[test]
fn a_file_of_another_kind_says_what_it_is_and_what_to_do() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for (bytes, what, advice) in [
        (
            b"PK\x03\x04\x0a\0\0\0".as_slice(),
            "a zip archive",
            "_dump_snapshot",
        ),
        (pointer.as_bytes(), "a Git LFS pointer", "git lfs pull"),
        (b"{\"segments\": []}", "JSON", "_dump_snapshot"),
        (b"\xef\xbb\xbf \n[1]", "JSON", "_dump_snapshot"),
    ] {
        for packed in [bytes.to_vec(), zstd::encode_all(bytes, 3).unwrap()] {
            let error = read(Path::new("run.trace"), packed.as_slice()).unwrap_err();
            assert!(
                matches!(error.defect(), Defect::OtherKind { .. }),
                "{error}"
            );
            let words = error.to_string();
            assert!(words.starts_with("run.trace: it is"), "{words}");
            assert!(words.contains(what) && words.contains(advice), "{words}");
        }
    }
}

#[test]
fn a_trace_behind_a_byte_order_mark_is_read() {
    let plain = "# alloc-trace v1\na 0 4096\nf 0\n";
    let marked = format!("\u{feff}{plain}");
    let both = [plain, &marked].map(|text| read(Path::new("t"), text.as_bytes()).unwrap());
    assert_eq!(both[0], both[1]);
}
