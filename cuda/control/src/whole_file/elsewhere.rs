//! [`Folder`] where files are reached by their paths only: links are followed, and nobody's files are told apart.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// There was a file.
#[derive(Clone, Copy)]
pub(super) struct Old;

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

    pub(super) fn look(&self, name: &OsStr) -> io::Result<Option<Old>> {
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

    pub(super) fn file(&self) -> io::Result<File> {
        File::open(&self.0)
    }
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
