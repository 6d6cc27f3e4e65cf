//! A neighbour who may write to the folder, as a process of another user, attacks the superuser or an ordinary user.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;

use larder_control::{Durability, FileLock, Sharing, read_orders, read_whole, replace_whole};

use crate::common::{Folder, command, role, wait_for};
use crate::hostile::{OTHER, make_pipe, rounds, set_mode};

/// The users whose files are attacked: the superuser and an ordinary user.
const VICTIMS: [u32; 2] = [0, 1001];

/// Runs this test again as another user, in a role.
fn spawn(test: &str, role: &str, user: u32, place: &Path) -> Child {
    let mut command = command(test, role, place);
    command.uid(user).gid(user).spawn().unwrap()
}

fn is_superuser() -> bool {
    let is_it = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_it {
        println!("skipped: only the superuser becomes somebody else");
    }
    is_it
}

/// Swaps in an executable file with the set-user-ID bit, a link to the secret, and a pipe, until it is killed.
fn attack(folder: &Path) {
    let path = folder.join("night.control.json");
    let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.join(name));
    let secret = folder.join("../secret");
    println!("begun");
    loop {
        fs::write(&file, "old").unwrap();
        set_mode(&file, 0o6777);
        fs::rename(&file, &path).unwrap();
        symlink(&secret, &link).unwrap();
        fs::rename(&link, &path).unwrap();
        make_pipe(&pipe);
        fs::rename(&pipe, &path).unwrap();
    }
}

/// Reads and replaces the attacked file many times.
fn defend(folder: &Path) {
    let path = folder.join("night.control.json");
    let (mut has_read, mut round) = (false, 0);
    // More rounds are made if the neighbour has not run in the meantime.
    while round < rounds() || !has_read {
        round += 1;
        if let Ok(Some(content)) = read_whole(&path, 100) {
            assert!(content == b"old" || content == b"new" || content.is_empty());
            has_read = true;
        }
        if let Ok(Some(orders)) = read_orders(&path, 100, None) {
            assert_eq!(orders, b"new", "orders of a neighbour");
        }
        replace_whole(&path, b"new", Durability::Seen).unwrap_or(());
        let found = fs::symlink_metadata(&path);
        let gives = |found: &fs::Metadata| found.uid() != OTHER && found.mode() & 0o7000 != 0;
        assert!(
            !found.is_ok_and(|found| gives(&found)),
            "rights of the victim"
        );
    }
    println!("defended");
}

#[test]
fn a_neighbour_who_swaps_files_gets_no_rights_no_secret_and_nobodys_time() {
    const TEST: &str =
        "users::a_neighbour_who_swaps_files_gets_no_rights_no_secret_and_nobodys_time";
    match role() {
        Some((role, folder)) if role == "attack" => return attack(&folder),
        Some((_, folder)) => return defend(&folder),
        None if !is_superuser() => return,
        None => {}
    }
    for victim in VICTIMS {
        let outside = Folder::new("users");
        let (folder, secret) = (outside.file("jobs"), outside.file("secret"));
        fs::create_dir(&folder).unwrap();
        fs::write(&secret, "secret").unwrap();
        set_mode(&secret, 0o600);
        for own in [&folder, &secret] {
            chown(own, Some(victim), Some(victim)).unwrap();
        }
        // The folder is not sticky, so the neighbour may replace anything in it.
        set_mode(&folder, 0o777);
        set_mode(outside.path(), 0o755);
        let mut attacker = spawn(TEST, "attack", OTHER, &folder);
        wait_for(&mut attacker, "begun");
        let mut defender = spawn(TEST, "defend", victim, &folder);
        wait_for(&mut defender, "defended");
        assert!(defender.wait().unwrap().success());
        attacker.kill().unwrap();
        attacker.wait().unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        let found = fs::metadata(&secret).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (victim, 0o600));
    }
}

#[test]
fn a_neighbour_who_takes_a_name_first_commands_nobody_and_holds_up_nobody() {
    const TEST: &str =
        "users::a_neighbour_who_takes_a_name_first_commands_nobody_and_holds_up_nobody";
    if let Some((_, folder)) = role() {
        let [control, status] =
            ["night.control.json", "night.status.json"].map(|name| folder.join(name));
        let refused = read_orders(&control, 100, None).unwrap_err();
        assert!(refused.to_string().contains("user 12345"), "{refused}");
        let refused = FileLock::take(&status, Sharing::Nobody).unwrap_err();
        assert_ne!(
            refused.source.kind(),
            std::io::ErrorKind::WouldBlock,
            "{refused}"
        );
        // Another name can still be locked.
        drop(FileLock::take(&folder.join("day.status.json"), Sharing::Nobody).unwrap());
        println!("defended");
        return;
    }
    if !is_superuser() {
        return;
    }
    for victim in VICTIMS {
        let folder = Folder::new("names");
        set_mode(folder.path(), 0o1777);
        for name in ["night.control.json", ".night.status.json.lock"] {
            fs::write(folder.file(name), "{}").unwrap();
            set_mode(&folder.file(name), 0o666);
            chown(folder.file(name), Some(OTHER), Some(OTHER)).unwrap();
        }
        let mut defender = spawn(TEST, "defend", victim, folder.path());
        wait_for(&mut defender, "defended");
        assert!(defender.wait().unwrap().success());
    }
}
