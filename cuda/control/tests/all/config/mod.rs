//! Control files: every rule by which they are read (am_5).

mod property;
mod random;

use std::collections::BTreeMap;

use larder_control::{BusId, ControlFile, ParseError, Parsed};
use larder_model::antman::Orders;
use larder_model::antman::reading::{self, Entry};

const GPU: &str = "00:1e.0";

fn gpu() -> BusId {
    GPU.parse().unwrap()
}

fn read(text: &str) -> Parsed {
    ControlFile::parse(text).unwrap()
}

fn with_limit(value: &str) -> String {
    format!(r#"{{"gpuConfigInfo": {{"{GPU}": {{"maxDeviceMem": {value}}}}}}}"#)
}

fn with_perf(value: &str) -> String {
    format!(r#"{{"perfControl": {value}}}"#)
}

/// Returns the contents and the problems of a file.
fn answer(text: &str) -> String {
    let parsed = match ControlFile::parse(text) {
        Ok(parsed) => parsed,
        Err(error) => return format!("{error:?}"),
    };
    // A file that is written is read back unchanged.
    let file = &parsed.file;
    assert_eq!(&read(&file.to_text()).file, file, "{text}");
    let mut said = Vec::new();
    said.extend(file.name.iter().map(|name| format!("name {name}")));
    said.extend(file.version.map(|version| format!("version {version}")));
    let limits = file.gpus.iter().map(|(gpu, own)| (gpu, own.max_device_mem));
    said.extend(limits.filter_map(|(gpu, limit)| Some(format!("{gpu} {}", limit?))));
    said.extend(file.perf_control.map(|perf| format!("perf {perf}")));
    said.extend(file.asleep.map(|asleep| format!("asleep {asleep}")));
    for problem in &parsed.problems {
        assert!(problem.to_string().starts_with(&problem.path));
        said.push(format!("! {} {:?}", problem.path, problem.what));
    }
    match said.is_empty() {
        true => "nothing".to_owned(),
        false => said.join(", "),
    }
}

/// Checks the cases of a test.
fn play(test: &str) {
    let sections = include_str!("cases.txt").split("\n== ");
    let own = sections.filter_map(|section| section.strip_prefix(test)?.strip_prefix('\n'));
    let cases = own
        .flat_map(str::lines)
        .filter_map(|line| line.split_once(" => "));
    let mut wrong = Vec::new();
    let mut count = 0;
    for (file, expected) in cases {
        let text = match file.split_once(' ') {
            Some(("limit", value)) => with_limit(value),
            Some(("perf", value)) => with_perf(value),
            _ => file.to_owned(),
        };
        let found = answer(&text);
        if found != expected {
            wrong.push(format!("{file}: {found}"));
        }
        count += 1;
    }
    assert!(
        count > 0 && wrong.is_empty(),
        "{test}: {}",
        wrong.join("\n")
    );
}

/// Defines a test for each section that has only cases.
macro_rules! cases {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            play(stringify!($name));
        })*
    };
}

cases! {
    am_5_perf_control_is_0_to_100_or_absent_so_that_the_old_value_stays
    am_5_of_two_spellings_of_one_gpu_the_later_one_wins_and_is_named
    am_5_null_and_nothing_at_all_change_nothing
    am_5_a_bad_value_keeps_the_good_ones_beside_it
    a_word_on_sleep_is_true_or_false_and_anything_else_changes_nothing
}

#[test]
fn am_5_the_exact_file_of_antman_is_read() {
    play("am_5_the_exact_file_of_antman_is_read");
    let antman = reading::limits(&[GPU], &[(GPU, Entry::Limit("1048576"))]);
    assert_eq!(antman, (BTreeMap::from([(GPU.to_owned(), 1 << 20)]), false));
    assert_eq!(reading::perf_control("50"), Some(50));
}

#[test]
fn am_5_a_limit_is_any_whole_number_of_64_bits() {
    play("am_5_a_limit_is_any_whole_number_of_64_bits");
    // Upstream's reader accepts a whole number with a decimal point, whatever its size, and skips
    // other values.
    for (text, bytes) in [
        ("1.0", Some(1)),
        ("9007199254740994.0", Some((1 << 53) + 2)),
        ("1.5", None),
        ("-5", None),
        ("\"1\"", None),
    ] {
        assert_eq!(reading::number(text), bytes, "{text}");
    }
}

#[test]
fn am_5_antman_keeps_150_and_cuts_two_to_the_32_to_a_suspended_job() {
    for (text, expected) in [
        ("150", Some(150)),
        ("4294967296", Some(0)),
        ("4294967297", Some(1)),
        ("3000000000", Some(-1_294_967_296)),
        ("18446744073709551615", Some(-1)),
        ("50.0", Some(50)),
        ("-5", None),
        ("0.5", None),
        ("\"50\"", None),
        ("null", None),
    ] {
        assert_eq!(reading::perf_control(text), expected, "{text}");
        // A value that AntMan reads as a share is the same share here.
        let share = expected.filter(|perf| (0..=100).contains(perf) && text.len() < 5);
        assert_eq!(read(&with_perf(text)).file.perf_control, share, "{text}");
    }
}

#[test]
fn am_5_a_name_in_upper_case_or_with_a_domain_is_the_same_gpu() {
    play("am_5_a_name_in_upper_case_or_with_a_domain_is_the_same_gpu");
    // Upstream compares names exactly.
    for key in ["00:1E.0", "0000:00:1e.0", "0000:00:1E.0"] {
        let (antman, _) = reading::limits(&[GPU], &[(key, Entry::Limit("7"))]);
        assert!(antman.is_empty(), "{key}");
    }
}

#[test]
fn am_5_what_is_no_object_gives_nothing() {
    play("am_5_what_is_no_object_gives_nothing");
    let entries = [(GPU, Entry::NotAnObject), ("00:1f.0", Entry::Limit("2"))];
    let antman = reading::limits(&[GPU, "00:1f.0"], &entries);
    assert_eq!(antman, (BTreeMap::new(), true));
}

#[test]
fn am_5_an_empty_file_and_what_is_not_json_give_nothing() {
    for text in ["", " ", "\n\t "] {
        assert_eq!(ControlFile::parse(text), Err(ParseError::Empty));
    }
    for text in [
        &b"{]"[..],
        b"{} {}",
        b"{\"a\": 01}",
        b"\xff\xfe",
        b"{\"name\": \"\xff\"}",
        b"\xef\xbb\xbf{}",
    ] {
        let error = ControlFile::parse(text).unwrap_err();
        assert!(matches!(error, ParseError::Syntax { .. }), "{error:?}");
    }
    let deep = "[".repeat(100_000);
    assert!(matches!(
        ControlFile::parse(deep),
        Err(ParseError::Syntax { .. })
    ));
}

#[test]
fn am_5_a_file_torn_at_any_byte_gives_nothing() {
    let text = r#"{"name": "ä job", "gpuConfigInfo": {"00:1e.0": {"maxDeviceMem": 1048576}}, "perfControl": 50}"#;
    for end in 0..text.len() {
        let torn = ControlFile::parse(&text.as_bytes()[..end]);
        assert!(torn.is_err(), "torn at {end}");
    }
    assert!(ControlFile::parse(text).is_ok());
}

#[test]
fn am_5_a_file_of_a_mebibyte_is_read_and_one_byte_more_is_not() {
    let mut text = with_perf("5");
    text.push_str(&" ".repeat(ControlFile::MAX_BYTES - text.len()));
    assert_eq!(read(&text).file.perf_control, Some(5));
    text.push(' ');
    let bytes = ControlFile::MAX_BYTES + 1;
    assert_eq!(
        ControlFile::parse(&text),
        Err(ParseError::TooLarge { bytes })
    );
}

/// How a job handles the same limit again is tested in `cuda/tests/all/jobs/limits.rs`.
#[test]
fn am_5_antman_adjusts_the_same_limit_again() {
    let mut antman = Orders::default();
    let (limits, _) = reading::limits(&[GPU], &[(GPU, Entry::Limit("7"))]);
    for _ in 0..2 {
        assert_eq!(antman.read(&limits), [(GPU.to_owned(), 7)]);
    }
    assert_eq!(antman.read(&BTreeMap::new()), []);
}

#[test]
fn unknown_fields_are_written_back_as_they_were() {
    let text = r#"{"zeta": [1, 0.1, {"x": null}], "gpuConfigInfo": {"00:1E.0": {"maxDeviceMem": 7, "owner": "a"}}, "alpha": 1e-7}"#;
    let mut parsed = read(text);
    parsed.file.limit(gpu(), 8);
    let value: serde_json::Value = serde_json::from_str(&parsed.file.to_text()).unwrap();
    let expected = r#"{"gpuConfigInfo":{"00:1e.0":{"maxDeviceMem":8,"owner":"a"}},"zeta":[1,0.1,{"x":null}],"alpha":1e-7}"#;
    assert_eq!(value.to_string(), expected);
    assert_eq!(read(&parsed.file.to_text()).file, parsed.file);
}

#[test]
fn a_long_name_is_cut_in_a_problems_path() {
    let key = "ü".repeat(100_000);
    let parsed = read(&with_limit("1").replace(GPU, &key));
    assert_eq!(
        parsed.problems[0].path.chars().count(),
        "gpuConfigInfo.".len() + 64
    );
}

#[test]
fn a_problem_shows_a_key_without_its_control_characters() {
    let parsed = read("{\"gpuConfigInfo\":{\"\\u001b[2J\\nall is well\":{}}}");
    let shown = parsed.problems[0].to_string();
    assert!(!shown.contains(char::is_control), "{shown:?}");
    assert!(parsed.problems[0].path.contains("all is well"));
}
