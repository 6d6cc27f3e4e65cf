//! Files that are read and replaced as a whole, in folders where others may write.
//!
//! # Invariants
//! * WHOLE1 a reader that opens the path sees all of the old content or all of the new content. The new
//!   content is written to a separate file in the same folder, which is then renamed over the old file.
//! * WHOLE2 after any refusal before the rename, the old file is intact and the new file is removed.
//! * WHOLE3 the new file belongs to the owner of the old one, and is never open to more users.
//! * WHOLE4 whatever others put at the name, no file outside of the folder is read or written, and no call
//!   blocks: the folder is opened once, and a file is reached by its name in the folder, which must not be a
//!   link. (This does not apply to systems without such calls, `elsewhere`. Only the system's
//!   `fs.protected_hardlinks`, which Linux distributions set, prevents a hard link that appears and
//!   disappears between two checks: no user can link a file that this user may not write.)
//! * WHOLE5 orders are read only from a file of a user who may command. What counts is the owner of the
//!   opened file, not of the name.
//! * WHOLE6 a lock is held by at most one process, on a separate file next to the locked one, which only its
//!   owner may open; when the lock was taken, its name still led to that file.

mod lock;

#[cfg(not(unix))]
mod elsewhere;
#[cfg(unix)]
mod unix;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

#[cfg(not(unix))]
use elsewhere::{Folder, User, keep, may_anybody_write};
use larder_core::sync::{AtomicU64, Ordering};
pub use lock::{FileLock, Sharing};
#[cfg(unix)]
use unix::{Folder, User, keep, may_anybody_write};

use crate::Life;

/// Maximum number of temporary names tried. Each has 64 random bits.
const TRIES: u32 = 16;

/// Number of temporary files that this process has made.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// When a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Other processes see the new content. A power failure may destroy both the new and the old content.
    #[default]
    Seen,
    /// The file and its folder are on the disk, at the cost of two waits for the disk.
    Stored,
}

/// The operation on a file that the system refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileAct {
    /// Reading the file.
    Read,
    /// Making a temporary file next to the file.
    Create,
    /// Writing the temporary file.
    Write,
    /// Renaming the temporary file over the file.
    Replace,
    /// Waiting for the disk after the rename. The new content is visible, but may not survive a power
    /// failure.
    Store,
    /// Locking the file's name, so that one process at a time uses the file.
    Lock,
    /// Finding the file's place, to watch the file. This fails if the path is empty or the working folder is
    /// unknown.
    Listen,
    /// Starting the thread that listens to the file.
    Thread,
}

impl FileAct {
    const fn words(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create => "make a temporary file next to",
            Self::Write => "write a temporary file next to",
            Self::Replace => "replace",
            Self::Store => "wait for the disk after replacing",
            Self::Lock => "lock",
            Self::Listen => "listen to the path",
            Self::Thread => "start the thread that listens to",
        }
    }
}

/// A file could not be read, replaced or listened to. After a failed replacement the file is unchanged,
/// except after [`FileAct::Store`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("cannot {} {}: {source}", act.words(), path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The operation that failed.
    pub act: FileAct,
    /// The system's error.
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn at(path: &Path, act: FileAct) -> impl FnOnce(io::Error) -> Self + use<'_> {
        move |source| Self {
            path: path.to_owned(),
            act,
            source,
        }
    }
}

/// Returns the content of a file, or `None` if there is no file at the path.
///
/// # Errors
/// The system refuses; the file is larger than `max` bytes; or the path is a folder, a pipe, a symbolic link,
/// or one of several names (hard links) of a file.
pub fn read_whole(path: &Path, max: usize) -> Result<Option<Vec<u8>>, FileError> {
    Ok(read_owned(path, max)?.map(|(content, _)| content))
}

/// The content of a file, and its owner's number if the system has owners.
pub type OwnedContent = (Vec<u8>, Option<u32>);

/// Returns the content of a file and its owner's number, or `None` if there is no file at the path. There is
/// no number if the system has no owners.
///
/// # Errors
/// The system refuses; the file is larger than `max` bytes; or the path is a folder, a pipe, a symbolic link,
/// or one of several names (hard links) of a file.
pub fn read_owned(path: &Path, max: usize) -> Result<Option<OwnedContent>, FileError> {
    let owner = |_: &Folder, file: &File| Ok(User::of(file)?.number());
    found(path, read(path, max, owner))
}

/// Returns the content of a file that commands a process of `user` (by default this process's user), or
/// `None` if there is no file at the path. The file must belong to that user, the superuser, or the owner of
/// its folder, who may put any file there: in a folder where all users may write, no other user's orders
/// count (WHOLE5). There is no such check if the system has no owners.
///
/// # Errors
/// The file belongs to another user, or is writable by all users; the system refuses; the file is larger than
/// `max` bytes; or the path is a folder, a pipe, a symbolic link, or one of several names (hard links) of a
/// file.
pub fn read_orders(
    path: &Path,
    max: usize,
    user: Option<u32>,
) -> Result<Option<Vec<u8>>, FileError> {
    let check = |folder: &Folder, file: &File| {
        let (owner, of_folder) = (User::of(file)?, folder.owner()?);
        let commanded = user.map_or_else(User::this, User::numbered);
        let words = if ![commanded, User::SUPERUSER, of_folder].contains(&owner) {
            format!(
                "it belongs to {owner}, and orders here are those of {commanded}, of the superuser, and of {of_folder}, who owns \
                 the folder: it is not obeyed; remove it"
            )
        } else if may_anybody_write(file)? {
            "all users may write it: it is not obeyed; take that permission away".to_owned()
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, words))
    };
    Ok(found(path, read(path, max, check))?.map(|(content, ())| content))
}

fn found<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>, FileError> {
    match read {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::at(path, FileAct::Read)(error)),
    }
}

/// Reads a file, which `look` checks first.
fn read<T>(
    path: &Path,
    max: usize,
    look: impl FnOnce(&Folder, &File) -> io::Result<T>,
) -> io::Result<(Vec<u8>, T)> {
    let name = name_in_folder(path)?;
    let folder = Folder::open(folder(path))?;
    let file = folder.read(name)?;
    let seen = look(&folder, &file)?;
    let mut content = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut content)?;
    if content.len() > max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than the largest file that is read",
        ));
    }
    Ok((content, seen))
}

/// Replaces a file's content in one step (WHOLE1). The file keeps its owner, group and permissions (WHOLE3).
/// The temporary file's name begins with a dot and ends in `.tmp`; a killed process may leave such a file,
/// which [`sweep`] removes.
///
/// # Errors
/// The system refuses; the path is a folder, a pipe, a symbolic link, or one of several names (hard links) of
/// a file; or the file belongs to a user to whom this process cannot give the new file. The old content is
/// then intact, and no temporary file is left (WHOLE2). Only [`FileAct::Store`] comes after the rename.
pub fn replace_whole(path: &Path, content: &[u8], durability: Durability) -> Result<(), FileError> {
    let failed = |act| FileError::at(path, act);
    let name = name_in_folder(path).map_err(failed(FileAct::Replace))?;
    let folder = Folder::open(folder(path)).map_err(failed(FileAct::Create))?;
    let old = folder.find(name).map_err(failed(FileAct::Replace))?;
    // A lack of permission is reported before anything changes.
    let stored = match durability {
        Durability::Seen => None,
        Durability::Stored => Some(folder.file().map_err(failed(FileAct::Create))?),
    };
    let made = Temporary::create(&folder, name, old.is_some());
    let (mut file, temporary) = made.map_err(failed(FileAct::Create))?;
    let write = |file: &mut File| {
        file.write_all(content)?;
        match durability {
            Durability::Seen => file.flush(),
            Durability::Stored => file.sync_all(),
        }
    };
    write(&mut file).map_err(failed(FileAct::Write))?;
    if let Some(old) = old {
        keep(&file, old).map_err(failed(FileAct::Replace))?;
    }
    drop(file);
    temporary.rename(name).map_err(failed(FileAct::Replace))?;
    match stored {
        Some(folder) => folder.sync_all().map_err(failed(FileAct::Store)),
        None => Ok(()),
    }
}

/// Removes the temporary files that ended processes left next to a file. Files that cannot be removed stay,
/// and all files stay if the system does not report its processes.
pub fn sweep(path: &Path) {
    let (Ok(target), Ok(opened)) = (name_in_folder(path), Folder::open(folder(path))) else {
        return;
    };
    let names = std::fs::read_dir(folder(path)).into_iter().flatten();
    for name in names.flatten().map(|entry| entry.file_name()) {
        let is_left = writer(&name, target).is_some_and(|pid| Life::of(pid).is_none());
        if is_left && Life::this().is_some() {
            // Another process may have removed the file as a leftover.
            let _ = opened.remove(&name);
        }
    }
}

/// Returns the PID of the process that made a temporary file next to `target`; `None` if the name is not that
/// of such a file.
fn writer(name: &OsStr, target: &OsStr) -> Option<u32> {
    let rest = name
        .to_str()?
        .strip_prefix('.')?
        .strip_prefix(target.to_str()?)?;
    let mut parts = rest.strip_prefix('.')?.strip_suffix(".tmp")?.split('.');
    let pid = parts.next()?.parse().ok()?;
    let is_number =
        |part: &str| !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    (parts.next().is_some_and(is_number)
        && parts.next().is_some_and(is_number)
        && parts.next().is_none())
    .then_some(pid)
}

/// Returns the folder in which a path lies.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the name with which a path ends: the file's name in its folder.
fn name_in_folder(path: &Path) -> io::Result<&OsStr> {
    let whole = path.as_os_str().as_encoded_bytes();
    // A path that ends with a separator has no name.
    let ends = |name: &&OsStr| whole.ends_with(name.as_encoded_bytes());
    path.file_name()
        .filter(ends)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))
}

/// A file in a folder. It is removed when this value is dropped, unless it was renamed.
struct Temporary<'a> {
    folder: &'a Folder,
    name: OsString,
    is_renamed: bool,
}

impl<'a> Temporary<'a> {
    /// Creates a new file next to `target`. If `private`, only the file's owner may open it (WHOLE3).
    fn create(folder: &'a Folder, target: &OsStr, private: bool) -> io::Result<(File, Self)> {
        let mut tries = 0;
        loop {
            // PIDs are not enough, since several programs and several systems may share the folder.
            let random = RandomState::new().build_hasher().finish();
            let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
            let process = std::process::id();
            let mut name = OsString::from(".");
            name.push(target);
            name.push(format!(".{process}.{number}.{random:016x}.tmp"));
            match folder.create(&name, private) {
                Ok(file) => {
                    let temporary = Self {
                        folder,
                        name,
                        is_renamed: false,
                    };
                    return Ok((file, temporary));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn rename(mut self, to: &OsStr) -> io::Result<()> {
        self.folder.rename(&self.name, to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            // A drop cannot report the error, and no reader opens a file with this name.
            let _ = self.folder.remove(&self.name);
        }
    }
}
