//! Files in folders that others may write to. Whatever others put at a name, nothing outside the folder is read or
//! written, nobody waits for them, and nobody gains more than the right to read and write their own file.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use larder_control::{
    Durability, FileAct, FileError, Listener, ListenerConfig, WatchMode, read_orders, read_owned,
    read_whole, replace_whole,
};
use rustix::fs::{CWD, FileType, Mode};

use crate::common::{Folder, assert_passes, command, role};

/// The ID of another user.
pub(crate) const OTHER: u32 = 12345;

fn replace(path: &Path) -> Result<(), FileError> {
    replace_whole(path, b"new", Durability::Seen)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn make_pipe(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

/// Asserts that neither a read nor a replacement touches the file, and that both say why.
#[track_caller]
fn assert_refused(path: &Path, words: &str) {
    for refused in [
        read_whole(path, 100).unwrap_err(),
        replace(path).unwrap_err(),
    ] {
        assert_eq!(refused.source.kind(), io::ErrorKind::InvalidInput);
        assert!(refused.to_string().contains(words), "{refused}");
    }
}

#[test]
fn a_file_that_is_replaced_gets_no_permission_but_to_read_and_write_it() {
    let folder = Folder::new("setuid");
    let path = folder.file("night.control.json");
    fs::write(&path, "old").unwrap();
    for (had, has) in [(0o6777, 0o666), (0o1750, 0o640), (0o600, 0o600)] {
        set_mode(&path, had);
        replace(&path).unwrap();
        assert_eq!(mode(&path), has, "{had:o}");
    }
    assert_eq!(folder.names(), ["night.control.json"]);
}

#[test]
fn links_and_pipes_are_refused_and_what_they_lead_to_stays() {
    let folder = Folder::new("links");
    let [secret, link, hard, pipe] =
        ["secret", "link", "hard", "pipe"].map(|name| folder.file(name));
    fs::write(&secret, "secret").unwrap();
    symlink(&secret, &link).unwrap();
    assert_refused(&link, "symbolic link");
    // A dangling link is refused too.
    fs::remove_file(&link).unwrap();
    symlink(folder.file("nowhere"), &link).unwrap();
    assert_refused(&link, "symbolic link");
    fs::hard_link(&secret, &hard).unwrap();
    assert_refused(&hard, "several names");
    make_pipe(&pipe);
    assert_refused(&pipe, "not a file");
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    assert_eq!(folder.names(), ["hard", "link", "pipe", "secret"]);
}

#[test]
fn a_folder_may_be_reached_by_a_link() {
    let folder = Folder::new("folder_link");
    let link = folder.file("link");
    fs::create_dir(folder.file("real")).unwrap();
    symlink("real", &link).unwrap();
    replace(&link.join("a")).unwrap();
    assert_eq!(read_whole(&link.join("a"), 3).unwrap().unwrap(), b"new");
}

#[test]
fn a_file_that_is_replaced_stays_its_owners() {
    let folder = Folder::new("owner");
    let path = folder.file("night.control.json");
    fs::write(&path, "old").unwrap();
    set_mode(&path, 0o600);
    if chown(&path, Some(OTHER), Some(OTHER)).is_err() {
        println!("skipped: only the superuser gives files away");
        return;
    }
    replace(&path).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!(
        (found.uid(), found.gid(), mode(&path)),
        (OTHER, OTHER, 0o600)
    );
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn who_cannot_leave_a_file_to_its_owner_does_not_replace_it() {
    if let Some((_, path)) = role() {
        let refused = replace(&path).unwrap_err();
        assert_eq!(refused.act, FileAct::Replace);
        assert_eq!(refused.source.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("user 0"), "{refused}");
        return;
    }
    let folder = Folder::new("stranger");
    let path = folder.file("night.control.json");
    fs::write(&path, "old").unwrap();
    set_mode(&path, 0o644);
    set_mode(folder.path(), 0o777);
    if chown(&path, Some(0), Some(0)).is_err() {
        println!("skipped: only the superuser becomes somebody else");
        return;
    }
    let test = "hostile::who_cannot_leave_a_file_to_its_owner_does_not_replace_it";
    let mut child = command(test, "replaces", &path);
    assert_passes(child.uid(OTHER).gid(OTHER).spawn().unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::metadata(&path).unwrap().uid(), 0);
    assert_eq!(folder.names(), ["night.control.json"]);
}

#[test]
fn orders_are_the_jobs_users_the_superusers_or_the_folders_owners() {
    let folder = Folder::new("orders");
    let [path, status] = ["night.control.json", "night.status.json"].map(|name| folder.file(name));
    for file in [&path, &status] {
        fs::write(file, "own").unwrap();
    }
    set_mode(folder.path(), 0o1777);
    let read = |also| read_orders(&path, 10, also);
    assert_eq!(read(None).unwrap().unwrap(), b"own");
    set_mode(&path, 0o646);
    let refused = read(None).unwrap_err();
    assert!(
        refused.to_string().contains("all users may write"),
        "{refused}"
    );
    set_mode(&path, 0o644);
    if chown(&path, Some(OTHER), None).is_err() {
        println!("skipped: only the superuser gives files away");
        return;
    }
    // Another user took the name of the control file first.
    let (_, owner) = read_owned(&status, 10).unwrap().unwrap();
    let refused = read(owner).unwrap_err();
    assert_eq!(refused.source.kind(), io::ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("user 12345"), "{refused}");
    assert_eq!(read_whole(&path, 10).unwrap().unwrap(), b"own");
    chown(&status, Some(OTHER), None).unwrap();
    let (_, owner) = read_owned(&status, 10).unwrap().unwrap();
    assert_eq!(read(owner).unwrap().unwrap(), b"own");
    assert!(read(None).is_err());
    chown(folder.path(), Some(OTHER), None).unwrap();
    assert_eq!(read(None).unwrap().unwrap(), b"own");
}

#[test]
fn a_listener_obeys_nobody_who_took_the_name_first_and_says_so() {
    let folder = Folder::new("squatted");
    let path = folder.file("night.control.json");
    fs::write(&path, "squatted").unwrap();
    if chown(&path, Some(OTHER), None).is_err() {
        println!("skipped: only the superuser gives files away");
        return;
    }
    let mut config = ListenerConfig::default();
    config.watch_mode = WatchMode::Manual;
    let listener = Listener::new(config);
    let (tell, told) = std::sync::mpsc::channel();
    let handle = listener.register(&path, move |text| drop(tell.send(text.to_vec())));
    listener.poll_now();
    assert!(told.try_recv().is_err());
    let problem = listener.problem().unwrap();
    assert!(problem.contains("it is not obeyed"), "{problem}");
    chown(&path, Some(0), None).unwrap();
    listener.poll_now();
    assert_eq!(told.try_recv().unwrap(), b"squatted");
    assert_eq!(listener.problem(), None);
    drop(handle);
}

/// Returns how many times something is swapped in. A successful attack needs only a few rounds.
pub(crate) fn rounds() -> usize {
    let is_long = std::env::var_os("LARDER_ROUNDS").is_some_and(|word| word == "all");
    if is_long { 100_000 } else { 2_000 }
}

/// Ends the attack when it is dropped, even if the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_is_swapped_in_meanwhile_is_neither_read_nor_written_nor_waited_for() {
    let (folder, outside) = (Folder::new("swapped"), Folder::new("outside"));
    let (path, secret) = (folder.file("night.control.json"), outside.file("secret"));
    fs::write(&secret, "secret").unwrap();
    set_mode(&secret, 0o600);
    let swapped = ["file", "link", "pipe"].map(|name| folder.file(name));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let [file, link, pipe] = &swapped;
            let swap = |with: &Path| fs::rename(with, &path).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                fs::write(file, "old").unwrap();
                set_mode(file, 0o6777);
                swap(file);
                symlink(&secret, link).unwrap();
                swap(link);
                make_pipe(pipe);
                swap(pipe);
            }
        });
        let _stop = Stop(&is_over);
        for _ in 0..rounds() {
            if let Ok(Some(content)) = read_whole(&path, 100) {
                assert!(content == b"old" || content == b"new" || content.is_empty());
            }
            // Some replacements succeed.
            replace(&path).unwrap_or(());
            assert_eq!(fs::read(&secret).unwrap(), b"secret");
        }
    });
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    assert_eq!(mode(&secret), 0o600);
}
