//! Files replaced as a whole: no reader sees a part, and a refused replacement leaves the old file.

use crate::common;

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::Folder;
use larder_control::{Durability, FileAct, StatusFile, read_whole, replace_whole};

fn status(number: u64) -> StatusFile {
    let mut status = StatusFile::default();
    // The length varies, so that a torn file is invalid JSON or has the wrong length.
    for graph in 0..(number % 50) * 4 {
        status.durations.insert(format!("graph_{graph}"), number);
    }
    status.mini_batch_micros = number;
    status
}

/// Reads the file repeatedly. Each time it must be whole and come from one write.
fn read_often(path: &Path, times: u32) {
    for _ in 0..times {
        let text = read_whole(path, StatusFile::MAX_BYTES)
            .unwrap()
            .expect("there all the time");
        let read = StatusFile::parse(&text).expect("whole");
        assert_eq!(read, status(read.mini_batch_micros));
    }
}

/// Repeats `reading` while a writer replaces the file, until the writer has made enough writes.
fn while_written(path: &Path, reading: impl Fn()) {
    const WRITES: u64 = 100;
    replace_whole(path, status(7).to_text().as_bytes(), Durability::Seen).unwrap();
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let number = writes.fetch_add(1, Ordering::Relaxed) + 1;
                replace_whole(path, status(number).to_text().as_bytes(), Durability::Seen).unwrap();
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            reading();
            while writes.load(Ordering::Relaxed) < WRITES && !writer.is_finished() {
                reading();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        outcome.unwrap();
    });
}

#[test]
fn readers_in_threads_see_no_torn_status_while_it_is_replaced() {
    let folder = Folder::new("threads");
    let path = folder.file("status.json");
    while_written(&path, || {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| read_often(&path, 1000));
            }
        });
    });
    assert_eq!(folder.names(), ["status.json"]);
}

#[test]
fn readers_in_other_processes_see_no_torn_status_while_it_is_replaced() {
    if let Some((_, path)) = common::role() {
        return read_often(&path, 1000);
    }
    let folder = Folder::new("processes");
    let path = folder.file("status.json");
    while_written(&path, || {
        let name = "files::readers_in_other_processes_see_no_torn_status_while_it_is_replaced";
        let start = || common::command(name, "reads", &path).spawn().unwrap();
        let readers = [start(), start()];
        readers.into_iter().for_each(common::assert_passes);
    });
}

#[test]
fn several_writers_leave_one_whole_file_and_nothing_beside_it() {
    let folder = Folder::new("writers");
    let path = folder.file("control.json");
    std::thread::scope(|scope| {
        for number in 0..4 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..100 {
                    replace_whole(path, status(number).to_text().as_bytes(), Durability::Seen)
                        .unwrap();
                }
            });
        }
    });
    read_often(&path, 1);
    assert_eq!(folder.names(), ["control.json"]);
}

#[test]
fn a_file_is_read_up_to_a_size_and_refused_one_byte_above() {
    let folder = Folder::new("size");
    let path = folder.file("a");
    assert!(read_whole(&path, 10).unwrap().is_none());
    replace_whole(&path, b"0123456789", Durability::Stored).unwrap();
    assert_eq!(read_whole(&path, 10).unwrap().unwrap(), b"0123456789");
    let error = read_whole(&path, 9).unwrap_err();
    assert_eq!(
        (error.act, error.source.kind()),
        (FileAct::Read, io::ErrorKind::FileTooLarge)
    );
    assert_eq!(
        read_whole(folder.path(), 9).unwrap_err().source.kind(),
        io::ErrorKind::InvalidInput
    );
    replace_whole(&path, b"", Durability::Seen).unwrap();
    assert_eq!(read_whole(&path, 0).unwrap().unwrap(), b"");
}

#[test]
fn what_cannot_be_replaced_stays_and_no_temporary_file_is_left() {
    let folder = Folder::new("refused");
    let inner = folder.file("inner");
    fs::create_dir(&inner).unwrap();
    // A folder cannot be replaced.
    let error = replace_whole(&inner, b"x", Durability::Seen).unwrap_err();
    assert_eq!(error.act, FileAct::Replace);
    assert!(error.to_string().contains("inner"));
    // There is no folder to write to.
    let error = replace_whole(&folder.file("none/a"), b"x", Durability::Seen).unwrap_err();
    assert_eq!(error.act, FileAct::Create);
    // A name that ends with a slash is that of a folder.
    let error = replace_whole(&folder.file("new/"), b"x", Durability::Seen).unwrap_err();
    assert_eq!(error.act, FileAct::Replace);
    // The path has no file name.
    assert_eq!(
        replace_whole(Path::new(".."), b"x", Durability::Seen)
            .unwrap_err()
            .act,
        FileAct::Replace
    );
    assert_eq!(folder.names(), ["inner"]);
}

#[cfg(unix)]
#[test]
fn a_name_too_long_for_a_temporary_file_is_refused_and_the_old_file_stays() {
    use std::os::unix::ffi::OsStringExt;
    let folder = Folder::new("rename");
    let name = std::ffi::OsString::from_vec(vec![b'n'; 250]);
    let path = folder.path().join(name);
    fs::write(&path, "old").unwrap();
    let error = replace_whole(&path, b"new", Durability::Seen).unwrap_err();
    assert_eq!(error.act, FileAct::Create);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(folder.names().len(), 1);
}

#[cfg(unix)]
#[test]
fn a_private_files_new_content_is_never_readable_by_others() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("private");
    let path = folder.file("secret");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut looks, mut open) = (0_u64, 0_u64);
            while !stop.load(Ordering::Relaxed) {
                for entry in fs::read_dir(folder.path()).unwrap().flatten() {
                    if let Ok(data) = entry.metadata() {
                        looks += 1;
                        open += u64::from(data.permissions().mode() & 0o077 != 0);
                    }
                }
            }
            (looks, open)
        });
        let content = vec![b'x'; 1 << 18];
        for _ in 0..300 {
            replace_whole(&path, &content, Durability::Seen).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let (looks, open) = watcher.join().unwrap();
        assert_eq!(open, 0, "of {looks} looks");
    });
}

#[cfg(unix)]
#[test]
fn a_disk_that_is_full_leaves_the_old_file_and_nothing_beside_it() {
    if let Some((_, path)) = common::role() {
        let error = replace_whole(&path, &[b'n'; 1 << 20], Durability::Seen);
        assert_eq!(error.unwrap_err().act, FileAct::Write);
        return;
    }
    let folder = Folder::new("full");
    let path = folder.file("status.json");
    fs::write(&path, "old").unwrap();
    let name = "files::a_disk_that_is_full_leaves_the_old_file_and_nothing_beside_it";
    // The child can write only a few kilobytes.
    let limited = common::command(name, "writes", &path);
    let script = "trap '' XFSZ && ulimit -f 8 && exec \"$0\" --exact \"$1\"";
    let program = std::env::current_exe().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(program).arg(name);
    for (variable, value) in limited.get_envs() {
        shell.env(variable, value.unwrap());
    }
    common::assert_passes(shell.stdout(Stdio::piped()).spawn().unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(folder.names(), ["status.json"]);
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_stored_is_refused_before_the_file_is_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("unreadable");
    let path = folder.file("control.json");
    fs::write(&path, "old").unwrap();
    // Files can be created and renamed in the folder, but only root can open the folder.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o300)).unwrap();
    let may = fs::File::open(folder.path()).is_ok();
    let replaced = replace_whole(&path, b"new", Durability::Stored);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(replaced.is_ok(), may);
    let expected: &[u8] = if may { b"new" } else { b"old" };
    assert_eq!(fs::read(&path).unwrap(), expected);
    assert_eq!(folder.names(), ["control.json"]);
}
