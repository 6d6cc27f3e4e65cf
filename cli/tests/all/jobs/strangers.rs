//! Folders in which strangers write: how the names of files are printed to a terminal and as JSON.

#[cfg(target_os = "linux")]
use std::ffi::OsStr;
use std::fs;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;

use super::*;

/// A job's name with characters that control a terminal, and invisible ones.
const NAME: &str =
    "a\u{1b}[2J\r\n\t\u{7f}\u{85}\u{9b}\u{61c}\u{200b}\u{200f}\u{2028}\u{202e}\u{2066}\u{feff}b";

/// Returns whether a text has any of these characters.
fn is_raw(text: &str) -> bool {
    let hidden = |letter: &char| NAME.contains(*letter) && !letter.is_ascii_graphic();
    text.lines().any(|line| line.chars().any(|l| hidden(&l)))
}

#[test]
fn whatever_a_name_holds_each_line_that_is_printed_is_whole_and_has_no_controls() {
    let machine = Machine::new(TOTAL);
    let jobs = text(&machine.jobs());
    fs::write(machine.jobs().join(format!("{NAME}.status.json")), "{}").unwrap();
    fs::write(machine.jobs().join(format!("{NAME}.control.json")), "{").unwrap();
    assert!(is_raw(NAME), "the test looks");
    for (arguments, count) in [
        (&["top", "--once", "--wide"][..], 4),
        (&["top", "--json"], 1),
        (&["coordinate", "--once", "--total", "1GiB"], 1),
        (&["coordinate", "--once", "--total", "1GiB", "--json"], 1),
        (&["control", "pause", "other", "--in"], 1),
        (&["control", "pause", NAME, "--in"], 1),
    ] {
        let output = machine.run(&[arguments, &[&jobs]].concat());
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(!is_raw(&said), "{arguments:?}: {said:?}");
        assert_eq!(said.lines().count(), count, "{arguments:?}: {said}");
        if arguments.contains(&"--json") {
            let line: Value = serde_json::from_str(&said).unwrap();
            let name = line.get("name").or(line.get("job"));
            assert_eq!(name.unwrap(), NAME);
        }
    }
}

// Other systems have no such names.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_whose_name_is_no_utf_8_is_one_like_others() {
    let machine = Machine::new(TOTAL);
    let folder = machine.jobs().join(OsStr::from_bytes(b"x\xff"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.status.json"), "{}").unwrap();
    for (arguments, said) in [
        (&["top", "--json"][..], "x\u{fffd}/a.status.json"),
        (&["top", "--once"], "a "),
        (
            &["coordinate", "--once", "--total", "1GiB"],
            "a: it says nothing",
        ),
        (
            &["coordinate", "--once", "--total", "1GiB", "--json"],
            "\"job\":\"a\"",
        ),
        (&["control", "pause", "a", "--in"], ""),
    ] {
        let output = machine.command(arguments).arg(&folder).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
    let control = fs::read_to_string(folder.join("a.control.json")).unwrap();
    assert!(control.contains("\"perfControl\": 0"), "{control}");
    // Selects the job by one of its files.
    let resumed = machine
        .command(&["control", "resume"])
        .arg(folder.join("a.status.json"))
        .output();
    assert!(resumed.unwrap().status.success());
    let control = fs::read_to_string(folder.join("a.control.json")).unwrap();
    assert!(control.contains("\"perfControl\": 100"), "{control}");
    let refused = machine
        .command(&["control", "pause", "b", "--in"])
        .arg(&folder)
        .output();
    let said = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(said.contains("x\u{fffd}; there are: a"), "{said}");
}
