//! Locks on names, and the files that killed writers leave.

use std::fs;
use std::io;
use std::os::unix::fs::{chown, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use larder_control::{FileLock, Sharing, sweep};

use crate::common::{Folder, command, role, wait_for};
use crate::hostile::{OTHER, make_pipe, rounds, set_mode};

#[test]
fn a_name_is_one_processs_until_it_ends_however_it_ends() {
    if let Some((_, path)) = role() {
        let _lock = FileLock::take(&path, Sharing::Nobody).unwrap();
        println!("held");
        std::thread::sleep(std::time::Duration::from_secs(600));
        return;
    }
    let folder = Folder::new("lock");
    let path = folder.file("night.status.json");
    let test = "locks::a_name_is_one_processs_until_it_ends_however_it_ends";
    let mut holder = command(test, "holds", &path).spawn().unwrap();
    wait_for(&mut holder, "held");
    // Another path to the same file is locked too.
    for path in [path.clone(), folder.path().join("./night.status.json")] {
        let refused = FileLock::take(&path, Sharing::Nobody).unwrap_err();
        assert_eq!(refused.source.kind(), io::ErrorKind::WouldBlock);
        let words = format!("process {} has it", holder.id());
        assert!(refused.to_string().contains(&words), "{refused}");
    }
    // Another name has its own lock.
    let other = FileLock::take(&folder.file("day.status.json"), Sharing::Nobody).unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    let lock = FileLock::take(&path, Sharing::Nobody).unwrap();
    assert!(lock.holds(&path));
    drop((lock, other));
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn locks_are_shared_by_those_that_ask_for_it() {
    let folder = Folder::new("shared_lock");
    let path = folder.file("coordinator");
    let take = |sharing| FileLock::take(&path, sharing);
    let both = [Sharing::Shared; 2].map(|sharing| take(sharing).unwrap());
    assert!(take(Sharing::Nobody).is_err());
    drop(both);
    let alone = take(Sharing::Nobody).unwrap();
    assert!(take(Sharing::Shared).is_err());
    drop(alone);
    drop(take(Sharing::Shared).unwrap());
}

#[test]
fn two_never_hold_a_lock_whose_file_comes_and_goes_with_it() {
    let folder = Folder::new("lock_race");
    let path = folder.file("night.status.json");
    let holders = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                // With fewer rounds, the threads seldom meet.
                for _ in 0..rounds().max(20_000) {
                    let Ok(lock) = FileLock::take(&path, Sharing::Nobody) else {
                        continue;
                    };
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                    holders.fetch_sub(1, Ordering::SeqCst);
                    drop(lock);
                }
            });
        }
    });
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn a_lock_that_is_a_link_a_pipe_or_somebody_elses_is_refused() {
    let folder = Folder::new("lock_hostile");
    let (path, lock) = (folder.file("a"), folder.file(".a.lock"));
    let secret = folder.file("secret");
    fs::write(&secret, "secret").unwrap();
    let refusal = || FileLock::take(&path, Sharing::Nobody).unwrap_err();
    symlink(&secret, &lock).unwrap();
    assert!(refusal().to_string().contains("symbolic link"));
    fs::remove_file(&lock).unwrap();
    make_pipe(&lock);
    assert!(refusal().to_string().contains("not a file"));
    fs::remove_file(&lock).unwrap();
    fs::hard_link(&secret, &lock).unwrap();
    assert!(refusal().to_string().contains("several names"));
    fs::remove_file(&lock).unwrap();
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    fs::write(&lock, "").unwrap();
    set_mode(&lock, 0o666);
    if chown(&lock, Some(OTHER), None).is_err() {
        println!("skipped: only the superuser gives files away");
        return;
    }
    assert!(refusal().to_string().contains("belongs to user 12345"));
    // While another process has the lock, no message suggests removing it.
    let held = fs::File::open(&lock).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(refusal().source.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn what_a_killed_writer_left_is_swept_and_nothing_else() {
    let folder = Folder::new("sweep");
    let path = folder.file("a.control.json");
    // No process has the first PID; the second is that of a live process.
    let own = std::process::id();
    let left = ".a.control.json.4194305.7.0123456789abcdef.tmp";
    let kept = [
        format!(".a.control.json.{own}.7.0123456789abcdef.tmp"),
        ".b.control.json.4194305.7.0123456789abcdef.tmp".to_owned(),
        ".a.control.json.4194305.tmp".to_owned(),
        ".a.control.json.4194305.7.mine.tmp".to_owned(),
        "a.control.json".to_owned(),
    ];
    for name in kept.iter().map(String::as_str).chain([left]) {
        fs::write(folder.file(name), "").unwrap();
    }
    sweep(&path);
    let mut kept = kept.to_vec();
    kept.sort();
    assert_eq!(folder.names(), kept);
}
