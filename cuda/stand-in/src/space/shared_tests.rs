//! Tests of the shared file.

use std::env;
use std::path::PathBuf;

use super::*;

/// A path in a folder for shared files, removed when dropped.
struct Path(PathBuf);

impl Path {
    fn new(name: &str) -> Self {
        let process = std::process::id();
        let path = env::temp_dir().join(format!("larder-stand-in-{process}-{name}"));
        let _ = fs::remove_file(&path);
        Self(path)
    }

    fn join(&self, totals: &[u64]) -> io::Result<SharedFile> {
        SharedFile::join(self.0.to_str().unwrap(), totals, &[])
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn two_parties_share_what_the_first_said_there_is() {
    let path = Path::new("two");
    let first = path.join(&[100]).unwrap();
    let second = path.join(&[500, 50]).unwrap();
    assert_eq!(second.look(0).unwrap(), (100, 100));
    assert_eq!(first.look(1).unwrap(), (50, 50));
    assert_eq!(first.take(0, 60).unwrap(), Ok(()));
    assert_eq!(second.take(0, 41).unwrap(), Err(Code::OUT_OF_MEMORY));
    assert_eq!(second.take(0, 40).unwrap(), Ok(()));
    assert_eq!(first.look(0).unwrap(), (100, 0));
    first.give(0, 60).unwrap();
    assert_eq!(second.look(0).unwrap(), (100, 60));
    second.leave();
    assert_eq!(first.look(0).unwrap(), (100, 100));
    assert!(second.take(0, 1).is_err());
}

#[test]
fn a_slot_of_a_process_that_is_gone_is_taken_back() {
    let path = Path::new("gone");
    let shared = path.join(&[100]).unwrap();
    let mut table = UsageTable::read(&shared.file).unwrap();
    // A process with our PID that started at another time.
    table.set(place(7), u64::from(std::process::id()));
    table.set(place(7) + 1, 1);
    table.set(place(7) + 2, 90);
    table.write(&shared.file).unwrap();
    assert_eq!(shared.look(0).unwrap(), (100, 100));
    assert_eq!(shared.take(0, 100).unwrap(), Ok(()));
    let table = UsageTable::read(&shared.file).unwrap();
    assert_eq!(table.word(place(7)), 0);
}

#[test]
fn a_foreign_or_damaged_file_is_refused_and_left_alone() {
    let path = Path::new("foreign");
    fs::write(&path.0, "something else").unwrap();
    assert!(path.join(&[100]).is_err());
    assert_eq!(fs::read(&path.0).unwrap(), b"something else");
    fs::write(&path.0, vec![7; WORDS * 8]).unwrap();
    assert!(path.join(&[100]).is_err());
    // The process that created this file was killed before it wrote the first word.
    fs::write(&path.0, vec![0; WORDS * 8]).unwrap();
    path.join(&[100]).unwrap();
    fs::remove_file(&path.0).unwrap();
    let shared = path.join(&[100]).unwrap();
    let file = OpenOptions::new().write(true).open(&path.0).unwrap();
    file.set_len(3).unwrap();
    assert!(shared.take(0, 1).is_err());
    assert!(shared.look(0).is_err());
}

#[test]
fn counts_beyond_all_bounds_do_not_overflow() {
    let path = Path::new("bounds");
    let shared = path.join(&[100]).unwrap();
    let other = path.join(&[100]).unwrap();
    let mut table = UsageTable::read(&shared.file).unwrap();
    table.set(place(shared.slot) + 2, u64::MAX);
    table.set(place(other.slot) + 2, u64::MAX);
    table.write(&shared.file).unwrap();
    assert_eq!(shared.look(0).unwrap(), (100, 0));
    assert_eq!(shared.take(0, 1).unwrap(), Err(Code::OUT_OF_MEMORY));
    assert_eq!(shared.take(0, 0).unwrap(), Ok(()));
}
