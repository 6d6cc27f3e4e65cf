//! Control files: every rule of reading them (am_5).

mod property;
mod random;

use std::collections::BTreeMap;

use larder_control::{BusId, ControlFile, GpuControl, ParseError, Parsed, ProblemKind as Kind};
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

fn problems(parsed: &Parsed) -> Vec<(&str, Kind)> {
    parsed
        .problems
        .iter()
        .map(|problem| (problem.path.as_str(), problem.what))
        .collect()
}

/// The limit that a file gives.
fn limit(parsed: &Parsed) -> Option<u64> {
    parsed.file.gpus[&gpu()].max_device_mem
}

#[test]
fn am_5_the_exact_file_of_antman_is_read() {
    let text = r#"{"name": "a job", "gpuConfigInfo": {"00:1e.0": {"maxDeviceMem": 1048576}}, "perfControl": 50}"#;
    let parsed = read(text);
    assert_eq!(parsed.file.name.as_deref(), Some("a job"));
    assert_eq!(parsed.file.gpus[&gpu()].max_device_mem, Some(1 << 20));
    assert_eq!(parsed.file.perf_control, Some(50));
    assert_eq!(parsed.file.version, None);
    assert!(parsed.problems.is_empty());
    let antman = reading::limits(&[GPU], &[(GPU, Entry::Limit("1048576"))]);
    assert_eq!(antman, (BTreeMap::from([(GPU.to_owned(), 1 << 20)]), false));
    assert_eq!(reading::perf_control("50"), Some(50));
}

#[test]
fn am_5_a_limit_is_any_whole_number_of_64_bits() {
    let path = "gpuConfigInfo.00:1e.0.maxDeviceMem";
    let cases: [(&str, Result<u64, Kind>); 18] = [
        ("0", Ok(0)),
        ("1", Ok(1)),
        ("4294967296", Ok(1 << 32)),
        ("9007199254740993", Ok((1 << 53) + 1)),
        ("9223372036854775808", Ok(1 << 63)),
        ("18446744073709551615", Ok(u64::MAX)),
        ("18446744073709551616", Err(Kind::TooLarge)),
        ("1.0", Ok(1)),
        ("1e3", Ok(1000)),
        ("9007199254740992.0", Ok(1 << 53)),
        ("9007199254740994.0", Err(Kind::TooLarge)),
        ("1.5", Err(Kind::Fraction)),
        ("-5", Err(Kind::Negative)),
        ("-0", Err(Kind::Negative)),
        ("\"1\"", Ok(1)),
        ("\" 1.5 GiB\"", Ok(3 << 29)),
        ("\"1.5\"", Err(Kind::NotANumber)),
        ("true", Err(Kind::NotANumber)),
    ];
    for (text, expected) in cases {
        let parsed = read(&with_limit(text));
        assert_eq!(limit(&parsed), expected.ok(), "{text}");
        match expected {
            Ok(_) => assert!(parsed.problems.is_empty(), "{text}"),
            Err(kind) => assert_eq!(problems(&parsed), [(path, kind)], "{text}"),
        }
    }
    // Upstream's reader takes a whole number with a point at any size, and skips the rest.
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
fn am_5_perf_control_is_0_to_100_or_absent_so_that_the_old_value_stays() {
    let cases: [(&str, Result<i32, Kind>); 12] = [
        ("0", Ok(0)),
        ("1", Ok(1)),
        ("99", Ok(99)),
        ("100", Ok(100)),
        ("50.0", Ok(50)),
        ("101", Err(Kind::NotAPercentage)),
        ("150", Err(Kind::NotAPercentage)),
        ("4294967296", Err(Kind::NotAPercentage)),
        ("-5", Err(Kind::Negative)),
        ("-0.0", Err(Kind::Negative)),
        ("0.5", Err(Kind::Fraction)),
        ("\"50\"", Err(Kind::NotANumber)),
    ];
    for (text, expected) in cases {
        let parsed = read(&with_perf(text));
        assert_eq!(parsed.file.perf_control, expected.ok(), "{text}");
        match expected {
            Ok(_) => assert!(parsed.problems.is_empty(), "{text}"),
            Err(kind) => assert_eq!(problems(&parsed), [("perfControl", kind)], "{text}"),
        }
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
        // What is a share there is the same share here.
        let share = expected.filter(|perf| (0..=100).contains(perf) && text.len() < 5);
        assert_eq!(read(&with_perf(text)).file.perf_control, share, "{text}");
    }
}

#[test]
fn am_5_a_name_in_upper_case_or_with_a_domain_is_the_same_gpu() {
    for key in ["00:1E.0", "0000:00:1e.0", "0000:00:1E.0"] {
        let text = with_limit("7").replace(GPU, key);
        assert_eq!(
            read(&text).file.gpus[&gpu()].max_device_mem,
            Some(7),
            "{key}"
        );
        // Upstream compares letter for letter.
        let (antman, _) = reading::limits(&[GPU], &[(key, Entry::Limit("7"))]);
        assert!(antman.is_empty(), "{key}");
    }
    let parsed = read(&with_limit("7").replace(GPU, "GPU 0"));
    assert_eq!(
        problems(&parsed),
        [("gpuConfigInfo.GPU 0", Kind::NotABusId)]
    );
}

#[test]
fn am_5_of_two_spellings_of_one_gpu_the_later_one_wins_and_is_named() {
    let text =
        r#"{"gpuConfigInfo": {"00:1e.0": {"maxDeviceMem": 1}, "00:1E.0": {"maxDeviceMem": 2}}}"#;
    let parsed = read(text);
    assert_eq!(parsed.file.gpus[&gpu()].max_device_mem, Some(2));
    assert_eq!(
        problems(&parsed),
        [("gpuConfigInfo.00:1E.0", Kind::SameGpu)]
    );
    // The same key twice, letter for letter: the last one, as JSON readers do it.
    let text = r#"{"perfControl": 1, "perfControl": 2}"#;
    assert_eq!(read(text).file.perf_control, Some(2));
}

#[test]
fn am_5_what_is_no_object_gives_nothing() {
    for text in ["[]", "1", "\"x\"", "null", "true"] {
        let parsed = ControlFile::parse(text);
        assert_eq!(parsed, Err(ParseError::NotAnObject), "{text}");
    }
    // Inside, the rest of the file counts; upstream throws.
    let text = r#"{"gpuConfigInfo": [1], "perfControl": 5}"#;
    let parsed = read(text);
    assert_eq!(problems(&parsed), [("gpuConfigInfo", Kind::NotAnObject)]);
    assert_eq!(parsed.file.perf_control, Some(5));
    let text = r#"{"gpuConfigInfo": {"00:1e.0": 1, "00:1f.0": {"maxDeviceMem": 2}}}"#;
    let parsed = read(text);
    assert_eq!(
        problems(&parsed),
        [("gpuConfigInfo.00:1e.0", Kind::NotAnObject)]
    );
    assert_eq!(parsed.file.gpus.len(), 1);
    let entries = [(GPU, Entry::NotAnObject), ("00:1f.0", Entry::Limit("2"))];
    let antman = reading::limits(&[GPU, "00:1f.0"], &entries);
    assert_eq!(antman, (BTreeMap::new(), true));
}

#[test]
fn am_5_null_and_nothing_at_all_change_nothing() {
    let texts = [
        "{}",
        r#"{"name": null, "version": null, "gpuConfigInfo": null, "perfControl": null}"#,
        r#"{"gpuConfigInfo": {}}"#,
        r#"{"gpuConfigInfo": {"00:1e.0": null}}"#,
        r#"{"gpuConfigInfo": {"00:1e.0": {}}}"#,
        r#"{"gpuConfigInfo": {"00:1e.0": {"maxDeviceMem": null}}}"#,
    ];
    for text in texts {
        let parsed = read(text);
        assert!(parsed.problems.is_empty(), "{text}");
        let has_limit = |gpu: &GpuControl| gpu.max_device_mem.is_some();
        assert!(!parsed.file.gpus.values().any(has_limit), "{text}");
        assert_eq!(parsed.file.perf_control, None, "{text}");
    }
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

#[test]
fn am_5_a_bad_value_keeps_the_good_ones_beside_it() {
    let text = r#"{"name": 5, "version": 2, "perfControl": 150,
        "gpuConfigInfo": {"00:1e.0": {"maxDeviceMem": -1}, "00:1F.0": {"maxDeviceMem": 9}}}"#;
    let parsed = read(text);
    let expected = [
        ("name", Kind::NotText),
        ("version", Kind::NewerVersion),
        ("gpuConfigInfo.00:1e.0.maxDeviceMem", Kind::Negative),
        ("perfControl", Kind::NotAPercentage),
    ];
    assert_eq!(problems(&parsed), expected);
    let other: BusId = "00:1f.0".parse().unwrap();
    assert_eq!(parsed.file.gpus[&other].max_device_mem, Some(9));
    assert_eq!((limit(&parsed), parsed.file.perf_control), (None, None));
    for problem in &parsed.problems {
        assert!(problem.to_string().starts_with(&problem.path));
    }
}

/// What a job does with the same limit again: `cuda/tests/all/jobs/limits.rs`.
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

#[test]
fn a_word_on_sleep_is_true_or_false_and_anything_else_changes_nothing() {
    for (text, expected) in [("true", Some(true)), ("false", Some(false)), ("null", None)] {
        let text = format!("{{\"asleep\": {text}, \"perfControl\": 50}}");
        let parsed = read(&text);
        assert_eq!(parsed.file.asleep, expected, "{text}");
        assert!(parsed.problems.is_empty(), "{text}");
        assert_eq!(read(&parsed.file.to_text()).file, parsed.file);
    }
    for wrong in ["1", "0", "\"true\"", "{}", "[true]"] {
        let parsed = read(&format!("{{\"asleep\": {wrong}, \"perfControl\": 50}}"));
        assert_eq!(parsed.file.asleep, None);
        assert_eq!(parsed.file.perf_control, Some(50), "the rest is read");
        assert_eq!(problems(&parsed), [("asleep", Kind::NotABool)]);
    }
}
