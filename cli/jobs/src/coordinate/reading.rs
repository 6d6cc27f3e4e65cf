//! [`Reading`]: the parts of a job's two files that a round keeps.

use larder_control::{ControlFile, Life, StatusFile};

use super::joined::words;
use crate::files::JobPaths;
use crate::order;
use crate::view::{are_few, read_status};

/// The contents of a job's two files, or descriptions of their defects.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) status: Result<Option<StatusFile>, String>,
    pub(super) control: Result<ControlFile, String>,
    /// Whether the control file belongs to the job's user, who could write any limit into it.
    pub(super) is_own_word: bool,
    /// The user that owns the status, if the system has users.
    pub(super) user: Option<u32>,
}

impl Reading {
    /// Reads both files, and keeps only the parts that are needed, because the readings of all jobs
    /// in a folder are held at the same time.
    pub(super) fn of(job: &JobPaths) -> Self {
        let said = read_status(&job.status);
        let user = said.as_ref().ok().and_then(|said| said.as_ref()?.1);
        let status = said.map(|said| {
            said.map(|(mut status, _)| {
                status.forget_unknown();
                status.durations.clear();
                status
            })
        });
        let strict = order::read(job, None);
        let is_own_word = strict.is_err() && user.is_some();
        let read = if is_own_word {
            order::read(job, user)
        } else {
            strict
        };
        let control = read.map_err(words).and_then(|(mut file, _)| {
            are_few(file.gpus.len())?;
            file.forget_unknown();
            Ok(file)
        });
        Self {
            status,
            control,
            is_own_word,
            user,
        }
    }

    /// Returns whether the job reports several GPUs.
    pub(super) fn has_several_gpus(&self) -> bool {
        let status = self.status.as_ref().ok().and_then(Option::as_ref);
        let own = status.and_then(|status| status.larder.as_ref());
        own.is_some_and(|own| own.gpus.len() > 1)
    }

    /// Returns the life of the process that wrote the status, if the status contains it.
    pub(super) fn life(&self) -> Option<Life> {
        self.status.as_ref().ok()?.as_ref()?.larder.as_ref()?.life
    }
}
