//! [`FileLock`]: lets one process at a time use a name.

use core::fmt;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

#[cfg(not(unix))]
use super::elsewhere::{Folder, User, try_lock};
#[cfg(unix)]
use super::unix::{Folder, User, try_lock};
use super::{FileAct, FileError, folder, name_in_folder};
use crate::life::is_of_user;

/// Maximum number of attempts to take a lock whose file keeps being removed.
const TRIES: usize = 100;

/// The other holders that a lock admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// No others, so that there is only one such lock at a time and no shared lock.
    Nobody,
    /// Other shared locks.
    Shared,
}

/// A lock on a name in a folder, held until it is dropped or its process ends. Other attempts to lock the
/// same name in the same folder are refused, through whatever path. The lock is on a file next to the locked
/// one, `.NAME.lock`, which contains the PID and can be opened only by its owner. It is removed at the end. A
/// killed process leaves the file, which does no harm.
///
/// A forked child that has not executed another program holds the lock, too.
///
/// ```
/// use larder_control::{FileLock, Sharing};
///
/// # let folder = std::env::temp_dir().join(format!("lock-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let path = folder.join("night.status.json");
/// let lock = FileLock::take(&path, Sharing::Nobody)?;
/// # #[cfg(unix)]
/// assert!(FileLock::take(&path, Sharing::Nobody).is_err());
/// drop(lock);
/// FileLock::take(&path, Sharing::Nobody)?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a lock that is dropped is free"]
pub struct FileLock {
    file: File,
    folder: Folder,
    name: OsString,
    sharing: Sharing,
    /// The process that took the lock. A forked child has the lock, too, but does not remove the file.
    process: u32,
}

impl FileLock {
    /// Locks a file's name, without waiting. The file itself need not exist, and is not accessed.
    ///
    /// # Errors
    /// [`FileAct::Lock`]: another process has the lock ([`io::ErrorKind::WouldBlock`], with the PID if it is
    /// known). With any other kind of error, the system refuses the file of the lock, for example because the
    /// folder is not writable or another user made the file.
    pub fn take(path: &Path, sharing: Sharing) -> Result<Self, FileError> {
        let taken = name_in_folder(path).and_then(|name| {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(".lock");
            Self::take_in(Folder::open(folder(path))?, &hidden, sharing)
        });
        taken.map_err(FileError::at(path, FileAct::Lock))
    }

    fn take_in(folder: Folder, name: &OsStr, sharing: Sharing) -> io::Result<Self> {
        // Keeps a system error from being mistaken for a taken lock.
        let refused = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::WouldBlock => io::ErrorKind::Other,
                kind => kind,
            };
            io::Error::new(kind, format!("its lock, {}: {error}", name.display()))
        };
        for _ in 0..TRIES {
            let mut file = folder.open_lock(name).map_err(refused)?;
            if !try_lock(&file, sharing == Sharing::Shared).map_err(refused)? {
                return Err(is_taken(&mut file));
            }
            // The previous holder may have removed the file since it was opened (WHOLE6).
            if !folder.is_at(name, &file).map_err(refused)? {
                continue;
            }
            let owner = User::of(&file)?;
            if ![User::this(), User::SUPERUSER].contains(&owner) {
                let words = format!("it is free and belongs to {owner}: remove it");
                return Err(refused(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    words,
                )));
            }
            if sharing == Sharing::Nobody {
                file.set_len(0)?;
                write!(file, "{}", std::process::id())?;
            }
            return Ok(Self {
                file,
                folder,
                name: name.to_owned(),
                sharing,
                process: std::process::id(),
            });
        }
        Err(refused(io::Error::other("it keeps being replaced")))
    }

    /// Returns whether other processes still find this lock: its folder and its file have not been replaced.
    pub fn holds(&self, path: &Path) -> bool {
        let found = || {
            let there = Folder::open(folder(path))?;
            there.is_at(&self.name, &self.file)
        };
        found().unwrap_or(false)
    }
}

/// Makes the error for a lock held by another process.
fn is_taken(file: &mut File) -> io::Error {
    let mut pid = String::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(20).read_to_string(&mut pid));
    // A shared holder does not write its PID, so the number may be an earlier holder's PID, or any number.
    let owner = User::of(file).ok().and_then(User::number);
    let is_owners = |pid: &u32| owner.is_some_and(|owner| is_of_user(*pid, owner) == Some(true));
    let pid = pid.parse().ok().filter(is_owners);
    let who = match (read, pid) {
        (Ok(_), Some(pid)) => format!("process {pid}"),
        _ => "another process".to_owned(),
    };
    let words = format!("{who} has it, or a child of it");
    io::Error::new(io::ErrorKind::WouldBlock, words)
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Removed under the lock, so that no other process's file is removed (WHOLE6). A drop cannot report
        // the error, and a leftover file does no harm.
        let is_own = self.sharing == Sharing::Nobody && self.process == std::process::id();
        if is_own && self.folder.is_at(&self.name, &self.file).unwrap_or(false) {
            let _ = self.folder.remove(&self.name);
        }
    }
}

impl fmt::Debug for FileLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileLock")
            .field("name", &self.name)
            .field("sharing", &self.sharing)
            .finish_non_exhaustive()
    }
}
