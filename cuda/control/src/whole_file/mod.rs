//! Files that are read whole and replaced whole.
//!
//! WHOLE1: a reader that opens the path sees the old content or the new one, all of it. The new content is
//! written to a file of its own in the same folder and then renamed over the old one.
//! WHOLE2: after any refusal before the renaming the old file is whole and the new one is removed.
//! WHOLE3: the new content is never open to more users than the old one was.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use larder_core::sync::{AtomicU64, Ordering};

/// Temporary names that are tried before giving up; each has 64 random bits.
const TRIES: u32 = 16;

/// Numbers the temporary files of this process.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// How durable a write is when it counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Other processes see the content. A power failure may destroy it and the old content.
    #[default]
    Seen,
    /// The file and its folder are on the disk. This costs two waits for the disk.
    Stored,
}

/// The operation on a file that the system refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileAct {
    /// Reading it.
    Read,
    /// Making a temporary file beside it.
    Create,
    /// Writing the temporary file.
    Write,
    /// Renaming the temporary file over it.
    Replace,
    /// Waiting for the disk after the renaming: the new content is visible, but may not survive a power
    /// failure.
    Store,
    /// Finding its place, to listen to it: the path is empty, or the working folder is not known.
    Listen,
    /// Starting the thread that listens to it.
    Thread,
}

impl FileAct {
    const fn words(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create => "make a temporary file beside",
            Self::Write => "write a temporary file beside",
            Self::Replace => "replace",
            Self::Store => "wait for the disk after replacing",
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
    /// What the system said.
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

/// The content of a file, or `None` if there is no file at the path.
///
/// # Errors
/// The system refuses; the file is larger than `max` bytes; or the path is not a file (a pipe would block for
/// ever).
pub fn read_whole(path: &Path, max: usize) -> Result<Option<Vec<u8>>, FileError> {
    match read(path, max) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::at(path, FileAct::Read)(error)),
    }
}

fn read(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    let mut content = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(limit).read_to_end(&mut content)?;
    if content.len() > max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than what is read",
        ));
    }
    Ok(content)
}

/// Replaces a file's content in one step (WHOLE1). The file keeps its permissions (WHOLE3) and becomes owned by the
/// writer; a symbolic link stays, and the file behind it is replaced. The temporary file's name begins with a
/// point and ends in `.tmp`; a process that is killed may leave one, which does no harm.
///
/// # Errors
/// The system refuses; the old content is whole then, and no temporary file is left (WHOLE2). Only
/// [`FileAct::Store`] comes after the renaming.
pub fn replace_whole(path: &Path, content: &[u8], durability: Durability) -> Result<(), FileError> {
    let failed = |act| FileError::at(path, act);
    // A dangling link is itself replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = fs::metadata(&target).ok();
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "not a file");
        return Err(failed(FileAct::Replace)(error));
    }
    // The folder is opened first, so that a missing permission is reported before anything changes.
    let folder = match durability {
        Durability::Seen => None,
        Durability::Stored => Some(File::open(folder(&target)).map_err(failed(FileAct::Create))?),
    };
    let made = create_beside(&target, old.is_some()).map_err(failed(FileAct::Create));
    let (mut file, temporary) = made?;
    let write = |file: &mut File| {
        if let Some(old) = &old {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(content)?;
        match durability {
            Durability::Seen => file.flush(),
            Durability::Stored => file.sync_all(),
        }
    };
    write(&mut file).map_err(failed(FileAct::Write))?;
    drop(file);
    fs::rename(&temporary.path, &target).map_err(failed(FileAct::Replace))?;
    temporary.keep();
    match folder {
        Some(folder) => folder.sync_all().map_err(failed(FileAct::Store)),
        None => Ok(()),
    }
}

/// The folder that a path lies in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Creates a new file in the folder of `target`; if `private`, only its owner may open it (WHOLE3).
fn create_beside(target: &Path, private: bool) -> io::Result<(File, Temporary)> {
    let Some(name) = target.file_name() else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path names no file",
        ));
    };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if private {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = private;
    let mut tries = 0;
    loop {
        // Several programs may share the folder, and several systems: process numbers are not enough.
        let random = RandomState::new().build_hasher().finish();
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(
            ".{}.{number}.{random:016x}.tmp",
            std::process::id()
        ));
        let path = folder(target).join(temporary);
        match options.open(&path) {
            Ok(file) => return Ok((file, Temporary { path, keep: false })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Removes its file when dropped, unless it was renamed.
struct Temporary {
    path: PathBuf,
    keep: bool,
}

impl Temporary {
    fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.keep {
            // A drop cannot report the error, and no reader opens a file with this name.
            let _ = fs::remove_file(&self.path);
        }
    }
}
