//! [`Folder`]: a folder that is opened once and whose files are reached by their names in it.

use core::fmt;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

/// Read and write permissions only, without execution or set-user-ID.
const MAY: u32 = 0o666;

/// Permissions of a new file, regardless of the process's mask.
const NEW: u32 = 0o664;

/// Maximum number of attempts to open a file that keeps being replaced.
const LOOKS: usize = 100;

/// Owner and permissions of the file to be replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Old {
    user: u32,
    group: u32,
    mode: u32,
}

/// The owner of a file, by the user's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct User(u32);

impl User {
    pub(super) const SUPERUSER: Self = Self(0);

    pub(super) fn of(file: &File) -> io::Result<Self> {
        Ok(Self(file.metadata()?.uid()))
    }

    /// Returns the user of this process.
    pub(super) fn this() -> Self {
        Self(rustix::process::geteuid().as_raw())
    }

    pub(super) const fn numbered(number: u32) -> Self {
        Self(number)
    }

    pub(super) const fn number(self) -> Option<u32> {
        Some(self.0)
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.0)
    }
}

pub(super) struct Folder(OwnedFd);

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // A handle that is used only for look-ups needs no permission to list the folder.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let access = OFlags::PATH;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let access = OFlags::RDONLY;
        let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, path, flags, Mode::empty())?))
    }

    /// Opens a file for reading. Does not block, as opening a pipe would, and does not follow a link.
    pub(super) fn read(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        for _ in 0..LOOKS {
            let file = match openat(&self.0, name, OFlags::RDONLY | flags, Mode::empty()) {
                Err(Errno::LOOP) => return Err(is_link()),
                opened => File::from(opened?),
            };
            // The number of names at the time of the open is unknown, because a name may have been removed
            // since. So the file must have at most one name, and that name must still lead to it.
            let names = file.metadata()?.nlink();
            if self.is_at(name, &file)? && names <= 1 {
                return Ok(file);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "it was another file at each look: it keeps being replaced",
        ))
    }

    /// Returns the owner and permissions of a file that will be replaced; `None` if there is no file.
    pub(super) fn find(&self, name: &OsStr) -> io::Result<Option<Old>> {
        Ok(self.stat(name)?.map(|found| Old {
            user: found.st_uid,
            group: found.st_gid,
            mode: found.st_mode & MAY,
        }))
    }

    /// Returns the status of a regular file with one name; `None` if there is no file.
    fn stat(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        let found = match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            found => found?,
        };
        let words = match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => return Err(is_link()),
            // A file that is being replaced has no name left.
            FileType::RegularFile if found.st_nlink <= 1 => return Ok(Some(found)),
            FileType::RegularFile => {
                "it has several names (hard links), and may be a file of another user"
            }
            _ => "not a file",
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, words))
    }

    /// Makes a new file. Only its owner may open it if it is `private`.
    pub(super) fn create(&self, name: &OsStr, private: bool) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(if private { 0o600 } else { NEW });
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, mode)?.into())
    }

    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    pub(super) fn owner(&self) -> io::Result<User> {
        Ok(User(fstat(&self.0)?.st_uid))
    }

    /// Opens the lock's file, which only its owner may open, and creates it if there is none.
    pub(super) fn open_lock(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        for _ in 0..LOOKS {
            match openat(&self.0, name, flags | OFlags::NOCTTY, Mode::empty()) {
                Err(Errno::NOENT) => {}
                Err(Errno::LOOP) => return Err(is_link()),
                opened => return Ok(opened?.into()),
            }
            // A second call is needed because, in a folder open to all, opening another user's file with the
            // flag to create it is refused.
            match openat(
                &self.0,
                name,
                flags | OFlags::CREATE | OFlags::EXCL,
                Mode::from_raw_mode(0o600),
            ) {
                Err(Errno::EXIST) => {}
                made => return Ok(made?.into()),
            }
        }
        Err(io::Error::other("it keeps appearing and disappearing"))
    }

    /// Returns whether a name leads to this file, which has no other name.
    pub(super) fn is_at(&self, name: &OsStr, file: &File) -> io::Result<bool> {
        let opened = file.metadata()?;
        let is_same = |now: Stat| (now.st_dev, now.st_ino) == (opened.dev(), opened.ino());
        Ok(self.stat(name)?.is_some_and(is_same))
    }

    /// Opens the folder itself, to wait for the disk.
    pub(super) fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.0, ".", flags, Mode::empty())?.into())
    }
}

pub(super) fn may_anybody_write(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.mode() & 0o002 != 0)
}

/// Locks an open file. Returns false if another open file has the lock.
pub(super) fn try_lock(file: &File, shared: bool) -> io::Result<bool> {
    let how = match shared {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(file, how) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        locked => Ok(locked.map(|()| true)?),
    }
}

/// Gives a new file the owner and the permissions of the file that it will replace.
pub(super) fn keep(new: &File, old: Old) -> io::Result<()> {
    let made: Metadata = new.metadata()?;
    if (made.uid(), made.gid()) != (old.user, old.group) {
        // The user is left out if it is already the writer, since omitting it is always allowed.
        let user = (made.uid() != old.user).then_some(old.user);
        fchown(new, user, Some(old.group)).map_err(|error| {
            let (user, group) = (old.user, old.group);
            let words = format!(
                "it belongs to user {user} and group {group} and could not be left to them ({error}): write it as that \
                 user or as the superuser, or remove it"
            );
            io::Error::new(io::ErrorKind::PermissionDenied, words)
        })?;
    }
    new.set_permissions(PermissionsExt::from_mode(old.mode))
}

fn is_link() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is a symbolic link, which is not followed: name the file itself",
    )
}
