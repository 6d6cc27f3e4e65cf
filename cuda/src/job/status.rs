//! The status of a job, and when it is written.

use core::fmt;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use larder_control::{BusId, FileError, JobStatus, Statistics, replace_whole};
use larder_core::sync::Ordering;

use super::JobShared;
use super::device_time::EndedRun;
use super::limits::StatusCheck;
use crate::driver::locked;

/// The effect on the status of recording a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Recorded {
    /// The run was recorded, and no check was due.
    Noted,
    /// A check found that nothing had changed.
    Unchanged,
    /// A check found a change and wrote the status.
    Written,
}

impl JobShared {
    /// Records a run, and writes the status if a check is due and finds a change.
    pub(super) fn record(
        &self,
        statistics: &mut Statistics,
        run: &EndedRun,
    ) -> Result<Recorded, FileError> {
        match statistics.record(run.graph, run.took, self.clock.now()) {
            true => self.check(statistics, StatusCheck::Due),
            false => Ok(Recorded::Noted),
        }
    }

    /// Writes the status if something in it has changed. The report contains the error, too.
    pub(super) fn check(
        &self,
        statistics: &mut Statistics,
        check: StatusCheck,
    ) -> Result<Recorded, FileError> {
        let (usage, job) = (self.managed.usage(check), self.status());
        let path = self.config.files.status.as_deref();
        let is_gone = path.is_some_and(is_gone);
        let Some(status) = statistics.check(self.clock.now(), usage, Some(job), is_gone) else {
            return Ok(Recorded::Unchanged);
        };
        if let Some(path) = path {
            let text = status.to_text();
            replace_whole(path, text.as_bytes(), self.config.durability)
                .inspect_err(|error| self.note_unwritten(error))?;
        }
        statistics.written();
        Ok(Recorded::Written)
    }

    /// Returns the job's own part of the status.
    fn status(&self) -> JobStatus {
        let mut job = JobStatus::default();
        job.pid = std::process::id();
        job.life = self.life;
        job.name.clone_from(&self.config.name);
        job.priority = self.config.priority;
        job.perf_control = self.management.perf().percent().into();
        job.control_version = locked(&self.report).version;
        // Relaxed: the thread that set this has left or has the statistics, and the combiner orders both
        // cases.
        job.ended = self.ends.load(Ordering::Relaxed) != 0;
        job.sleep = Some(self.sleep.status());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        job.written_at_unix_ms = now.map_or(0, |now| now.as_millis() as u64);
        let wanted_bytes = self.wanted_bytes();
        let add = |sum: &mut u64, bytes| *sum = sum.saturating_add(bytes);
        let mut lendable: BTreeMap<BusId, u64> = BTreeMap::new();
        for (gpu, limit_bytes, held, loans) in self.managed.limits() {
            let held_bytes = held.pool_bytes;
            let deferred_bytes = held_bytes.saturating_sub(limit_bytes);
            let here = job.gpus.entry(gpu).or_default();
            add(&mut here.limit_bytes, limit_bytes);
            add(&mut here.held_bytes, held_bytes);
            add(&mut here.deferred_bytes, deferred_bytes);
            add(&mut here.lent_bytes, loans.lent_bytes);
            // Idle memory is not the job's own need.
            let kept = held.stable_bytes.saturating_sub(loans.lent_bytes);
            let guaranteed = here.guaranteed_bytes.get_or_insert(0);
            add(guaranteed, kept.saturating_add(loans.unused_bytes));
            add(lendable.entry(gpu).or_default(), loans.lendable_bytes);
            here.wanted_bytes = wanted_bytes;
            add(&mut job.limit_bytes, limit_bytes);
            add(&mut job.held_bytes, held_bytes);
            add(&mut job.deferred_bytes, deferred_bytes);
        }
        for (gpu, here) in &mut job.gpus {
            let lendable_bytes = lendable.get(gpu).copied().unwrap_or(0);
            let wanted = wanted_bytes.map_or(0, |bytes| bytes.saturating_sub(lendable_bytes));
            let guaranteed = here.guaranteed_bytes.map(|bytes| bytes.max(wanted));
            here.guaranteed_bytes = guaranteed.filter(|_| lendable_bytes > 0);
        }
        job
    }

    /// Returns the bytes that the program would like to hold, if the program has set them.
    fn wanted_bytes(&self) -> Option<u64> {
        // Relaxed: no other memory is published through the number.
        let bytes = self.wanted_bytes.load(Ordering::Relaxed);
        (bytes != Self::UNKNOWN).then_some(bytes)
    }

    fn note_unwritten(&self, error: &FileError) {
        let mut report = locked(&self.report);
        report.unwritten += 1;
        report.problem = Some(error.to_string());
    }
}

/// Returns whether no file has the name any more.
fn is_gone(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noted => "noted",
            Self::Unchanged => "nothing changed",
            Self::Written => "written",
        })
    }
}
