//! The two files of a job, and how a folder's files pair up.
//!
//! A job's name is the part before the ending, and both files lie in one folder:
//!
//! | | status | control |
//! |---|---|---|
//! | ours | `<name>.status.json` | `<name>.control.json` |
//! | AntMan | `<name>_pai2sche.json` | `<name>_sche2pai.json` |
//!
//! Either file alone makes a job: it may not have written a status yet, or may have no control
//! file. Files whose names begin with a dot, such as temporary files, are ignored. So is a control
//! file alone under AntMan's name if the folder has a pair of ours with that name, because one job
//! would count as two. Two statuses are two jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

/// The pairs of endings of a job's files: status, control.
const ENDINGS: [(&str, &str); 2] = [
    (".status.json", ".control.json"),
    ("_pai2sche.json", "_sche2pai.json"),
];

/// Paths of a job's status and control files.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(crate) struct JobPaths {
    pub(crate) name: String,
    /// The file that the job writes.
    #[serde(serialize_with = "as_text")]
    pub(crate) status: PathBuf,
    /// The file that the job reads.
    #[serde(serialize_with = "as_text")]
    pub(crate) control: PathBuf,
}

/// The reason why the files of a job were not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error(
        "cannot read {}: {source}; name the folder with the jobs' files",
        path.display()
    )]
    Refused { path: PathBuf, source: io::Error },
    /// The name has none of the endings.
    #[error(
        "{} is not a file of a job: its name must end in .status.json, .control.json, _pai2sche.json or _sche2pai.json",
        .0.display()
    )]
    NotNamed(PathBuf),
    #[error("there is no job `{name}` in {}; there are: {known}", folder.display())]
    NoSuchJob {
        name: String,
        folder: PathBuf,
        /// The names of all jobs in the folder, or `none`.
        known: String,
    },
}

/// Returns the default folder of the files, which AntMan's cluster side uses: `antman` under the
/// temporary directory.
pub(crate) fn default_folder() -> PathBuf {
    std::env::temp_dir().join("antman")
}

impl JobPaths {
    /// Returns the files of the job `name` in a folder, with Larder's endings.
    pub(crate) fn ours(folder: &Path, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            status: folder.join(format!("{name}{}", ENDINGS[0].0)),
            control: folder.join(format!("{name}{}", ENDINGS[0].1)),
        }
    }

    /// Returns the pair to which a file belongs by its name; `None` if it is not a file of a job.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let file = path.file_name()?.to_str()?;
        if file.starts_with('.') {
            return None;
        }
        ENDINGS.iter().find_map(|(status, control)| {
            let name = file
                .strip_suffix(status)
                .or_else(|| file.strip_suffix(control))?;
            if name.is_empty() {
                return None;
            }
            Some(Self {
                name: name.to_owned(),
                status: path.with_file_name(format!("{name}{status}")),
                control: path.with_file_name(format!("{name}{control}")),
            })
        })
    }
}

/// How to treat a control file alone under AntMan's name if there is a pair of ours with the same
/// name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Twins {
    /// The control file is ignored, so the job counts once.
    Hidden,
    /// The control file makes a job, for programs that count memory and trust no name.
    All,
}

/// Returns all jobs in the given folders and of the given files, sorted by name. O(files in the
/// folders).
pub(crate) fn find(places: &[PathBuf], twins: Twins) -> Result<Vec<JobPaths>, FilesError> {
    let mut jobs = BTreeSet::new();
    for place in places {
        let refused = |source| FilesError::Refused {
            path: place.clone(),
            source,
        };
        let is_folder = fs::metadata(place).map(|found| found.is_dir());
        match (is_folder, JobPaths::of(place)) {
            (Ok(true), _) => {
                jobs.extend(find_in(place, twins).map_err(refused)?);
            }
            // One of the two files may not exist yet.
            (_, Some(job)) => {
                jobs.insert(job);
            }
            (Ok(false), None) => return Err(FilesError::NotNamed(place.clone())),
            (Err(source), None) => return Err(refused(source)),
        }
    }
    Ok(jobs.into_iter().collect())
}

/// Returns the jobs in a folder.
fn find_in(folder: &Path, twins: Twins) -> io::Result<impl Iterator<Item = JobPaths>> {
    let mut pairs = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(job) = JobPaths::of(&path) {
            let is_status = path == job.status;
            *pairs.entry(job).or_insert(false) |= is_status;
        }
    }
    // Sorted by name, ours before AntMan's, so that ours is never ignored.
    let mut pairs: Vec<(JobPaths, bool)> = pairs.into_iter().collect();
    if twins == Twins::Hidden {
        pairs.dedup_by(|(job, has_status), (before, _)| !*has_status && job.name == before.name);
    }
    Ok(pairs.into_iter().map(|(job, _)| job))
}

/// Returns the job with this name in a folder.
pub(crate) fn find_named(folder: &Path, name: &str) -> Result<JobPaths, FilesError> {
    let jobs = find(&[folder.to_owned()], Twins::Hidden)?;
    if let Some(job) = jobs.iter().find(|job| job.name == name) {
        return Ok(job.clone());
    }
    let names: Vec<_> = jobs.iter().map(|job| job.name.as_str()).collect();
    Err(FilesError::NoSuchJob {
        name: name.to_owned(),
        folder: folder.to_owned(),
        known: if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        },
    })
}

/// Serializes a path as text. Bytes that are not UTF-8 are replaced.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
