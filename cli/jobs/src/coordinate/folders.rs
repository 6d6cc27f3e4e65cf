//! [`FolderLocks`] admits one coordinator at a time for a GPU and a folder of jobs.
//!
//! A coordinator of one GPU holds `coordinator.GPU` exclusively, and shares the lock `coordinator`
//! with coordinators of other GPUs; a coordinator of every GPU holds `coordinator` exclusively.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use larder_control::{BusId, FileError, FileLock, Sharing};

/// Another coordinator divides these jobs' memory, or the lock was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    #[error("the jobs in {} have a coordinator: {source}; end it first", folder.display())]
    Taken { folder: PathBuf, source: FileError },
    #[error(transparent)]
    File(FileError),
    #[error("cannot read {}: {source}; name the folder with the jobs' files", folder.display())]
    Missing { folder: PathBuf, source: io::Error },
}

/// The locks of a coordinator, held until this value is dropped.
#[derive(Debug, Default)]
pub(crate) struct FolderLocks(BTreeMap<PathBuf, Vec<FileLock>>);

impl FolderLocks {
    /// Locks the folders of these places that are not locked yet or have been replaced. Returns
    /// true if there were any: another coordinator may have run in between.
    pub(crate) fn hold(
        &mut self,
        places: &[PathBuf],
        gpu: Option<BusId>,
    ) -> Result<bool, FolderError> {
        let folders: Result<BTreeSet<PathBuf>, _> =
            places.iter().map(|place| folder_of(place)).collect();
        let mut is_new = false;
        for folder in folders? {
            let names = names(&folder, gpu);
            let holds = |locks: &Vec<FileLock>| {
                names
                    .iter()
                    .zip(locks)
                    .all(|((path, _), lock)| lock.holds(path))
            };
            if self.0.get(&folder).is_some_and(holds) {
                continue;
            }
            self.0.remove(&folder);
            let taken: Result<_, _> = names
                .iter()
                .map(|(path, sharing)| FileLock::take(path, *sharing))
                .collect();
            let locks = taken.map_err(|source| match source.source.kind() {
                io::ErrorKind::WouldBlock => FolderError::Taken {
                    folder: folder.clone(),
                    source,
                },
                _ => FolderError::File(source),
            })?;
            self.0.insert(folder, locks);
            is_new = true;
        }
        Ok(is_new)
    }
}

/// Returns the refusal of the lock if a coordinator is running for a GPU, or with `None` for any
/// GPU, in the folder of a job's file.
pub(crate) fn running_coordinator(file: &Path, gpu: Option<BusId>) -> Option<FileError> {
    let folder = folder_of(file).ok()?;
    // If this lock is free, its file is removed again, so that none is left in the way of a
    // coordinator of another user.
    let any = FileLock::take(&folder.join("coordinator"), Sharing::Nobody);
    any.err()
        .filter(|error| error.source.kind() == io::ErrorKind::WouldBlock)?;
    match FolderLocks::default().hold(&[folder], gpu) {
        Err(FolderError::Taken { source, .. }) => Some(source),
        _ => None,
    }
}

/// Returns the canonical path of a place that is a folder, or of the folder of a job's file.
fn folder_of(place: &Path) -> Result<PathBuf, FolderError> {
    let is_folder = fs::metadata(place).is_ok_and(|found| found.is_dir());
    let folder = match place.parent() {
        _ if is_folder => place,
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::canonicalize(folder).map_err(|source| FolderError::Missing {
        folder: folder.to_owned(),
        source,
    })
}

fn names(folder: &Path, gpu: Option<BusId>) -> Vec<(PathBuf, Sharing)> {
    let all = folder.join("coordinator");
    match gpu {
        None => vec![(all, Sharing::Nobody)],
        Some(gpu) => vec![
            (all, Sharing::Shared),
            (folder.join(format!("coordinator.{gpu}")), Sharing::Nobody),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_coordinator_of_a_gpu_or_one_of_all_by_whatever_path() {
        let folder = tempfile::tempdir().unwrap();
        let places = [folder.path().to_owned()];
        let by_file = [folder
            .path()
            .join("../")
            .join(folder.path().file_name().unwrap())
            .join("a.status.json")];
        let [one, two]: [BusId; 2] = ["01:00.0", "02:00.0"].map(|gpu| gpu.parse().unwrap());
        let hold = |places: &[PathBuf], gpu| {
            let mut locks = FolderLocks::default();
            locks.hold(places, gpu).map(|_| locks)
        };
        let first = hold(&places, Some(one)).unwrap();
        let refused = hold(&by_file, Some(one)).unwrap_err();
        assert!(matches!(refused, FolderError::Taken { .. }), "{refused}");
        assert!(
            refused
                .to_string()
                .contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        assert!(running_coordinator(&by_file[0], Some(one)).is_some());
        assert!(running_coordinator(&by_file[0], Some(two)).is_none());
        let _second = hold(&by_file, Some(two)).unwrap();
        assert!(running_coordinator(&by_file[0], Some(two)).is_some());
        assert!(hold(&places, None).is_err());
        drop((first, _second));
        assert!(running_coordinator(&by_file[0], None).is_none());
        let mut all = hold(&places, None).unwrap();
        for gpu in [None, Some(one)] {
            assert!(hold(&places, gpu).is_err());
        }
        // These are the same places, by another path.
        let again = all.hold(&[places[0].clone(), by_file[0].clone()], None);
        assert!(!again.unwrap());
        // A lock file that was removed is locked again, by only one of the coordinators.
        fs::remove_file(folder.path().join(".coordinator.lock")).unwrap();
        let other = hold(&places, None).unwrap();
        assert!(all.hold(&places, None).is_err());
        drop(other);
        assert!(all.hold(&places, None).unwrap());
        let missing = hold(&[folder.path().join("nowhere/x")], None).unwrap_err();
        assert!(matches!(missing, FolderError::Missing { .. }), "{missing}");
    }
}
