//! [`Folder`] on systems where files can be reached only by their paths: links are followed, and owners are
//! not distinguished.

use core::fmt;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// An existing file.
#[derive(Clone, Copy)]
pub(super) struct Old;

/// All users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct User;

impl User {
    pub(super) const SUPERUSER: Self = Self;

    pub(super) fn of(_file: &File) -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) const fn this() -> Self {
        Self
    }

    pub(super) const fn numbered(_number: u32) -> Self {
        Self
    }

    pub(super) const fn number(self) -> Option<u32> {
        None
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("somebody")
    }
}

pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(path.to_owned()))
    }

    pub(super) fn read(&self, name: &OsStr) -> io::Result<File> {
        let path = self.0.join(name);
        check(fs::metadata(&path)?.is_file())?;
        File::open(path)
    }

    pub(super) fn find(&self, name: &OsStr) -> io::Result<Option<Old>> {
        match fs::metadata(self.0.join(name)) {
            Ok(found) => check(found.is_file()).map(|()| Some(Old)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn create(&self, name: &OsStr, _private: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        options.open(self.0.join(name))
    }

    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    pub(super) fn owner(&self) -> io::Result<User> {
        Ok(User)
    }

    pub(super) fn open_lock(&self, name: &OsStr) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(self.0.join(name))
    }

    pub(super) fn is_at(&self, _name: &OsStr, _file: &File) -> io::Result<bool> {
        Ok(true)
    }

    pub(super) fn file(&self) -> io::Result<File> {
        File::open(&self.0)
    }
}

pub(super) fn may_anybody_write(_file: &File) -> io::Result<bool> {
    Ok(false)
}

/// On these systems no lock would end with its process, so every request is granted.
pub(super) fn try_lock(_file: &File, _shared: bool) -> io::Result<bool> {
    Ok(true)
}

pub(super) fn keep(_new: &File, _old: Old) -> io::Result<()> {
    Ok(())
}

fn check(is_file: bool) -> io::Result<()> {
    match is_file {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file")),
    }
}
