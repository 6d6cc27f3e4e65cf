//! The coordinator's record of one job, and the most that the job may hold according to it.

use std::time::Duration;

use super::targets::Want;
use super::{Command, CoordinateError, JobId, JobPolicy, JobReport};
use crate::perf::PerfControl;

/// The highest version that is taken over from another coordinator; it leaves as many again to send.
const MAX_ADOPTED: u64 = u64::MAX / 2;

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) policy: JobPolicy,
    /// The newest version that was sent (COORD3).
    sent: u64,
    /// The newest version that the job confirmed.
    confirmed: u64,
    /// The limit that was sent last.
    sent_limit: u64,
    /// The limit in force at the job's last report.
    pub(super) limit: u64,
    /// What the job held at its last report, and the limit plus its deferred bytes if that is more.
    held: u64,
    /// What the job wants; a lower want counts only after a while.
    pub(super) want: u64,
    /// The lower want that has not lasted long enough yet.
    lower_want: Option<LowerWant>,
    /// The job's answer, if it set another limit than the last one that was sent.
    answer: Option<Answer>,
    pub(super) perf: PerfControl,
}

/// A limit that a job changed instead of obeying it.
#[derive(Clone, Copy, Debug)]
struct Answer {
    asked: u64,
    got: u64,
    /// When the job answered: a job that refused may obey some time later.
    at: Duration,
}

/// The time since which a job wants less, and the most it has wanted since.
#[derive(Clone, Copy, Debug)]
struct LowerWant {
    since: Duration,
    max: u64,
}

impl Job {
    pub(super) const fn new(id: JobId, policy: JobPolicy) -> Self {
        Self {
            id,
            policy,
            sent: 0,
            confirmed: 0,
            sent_limit: 0,
            limit: 0,
            held: 0,
            want: 0,
            lower_want: None,
            answer: None,
            perf: PerfControl::FULL,
        }
    }

    pub(super) fn report(
        &mut self,
        report: JobReport,
        now: Duration,
        step: u64,
    ) -> Result<(), CoordinateError> {
        let is_anothers = self.sent == 0 && report.version > 0;
        if is_anothers && report.version <= MAX_ADOPTED {
            self.sent = report.version;
            self.sent_limit = report.limit_bytes;
        }
        if report.version > self.sent {
            return Err(CoordinateError::NeverSent { version: self.sent });
        }
        if report.version < self.confirmed {
            return Ok(());
        }
        let allowed = self.charge();
        self.limit = report.limit_bytes;
        self.held = report
            .held_bytes
            .max(report.limit_bytes.saturating_add(report.deferred_bytes));
        if report.version > self.confirmed && report.limit_bytes != self.sent_limit {
            self.answer = Some(Answer {
                asked: self.sent_limit,
                got: report.limit_bytes,
                at: now,
            });
        }
        self.confirmed = report.version;
        let wanted = report
            .wanted_bytes
            .checked_next_multiple_of(step.max(1))
            .unwrap_or(u64::MAX);
        self.wants(wanted, now);
        match self.charge().saturating_sub(allowed) {
            0 => Ok(()),
            _ if is_anothers => Ok(()),
            bytes => Err(CoordinateError::AboveLimit { bytes }),
        }
    }

    /// Takes a higher want at once and notes a lower one.
    fn wants(&mut self, wanted: u64, now: Duration) {
        if wanted >= self.want {
            if wanted > self.want {
                // The job wants another amount, so it may answer a limit differently now.
                self.answer = None;
            }
            self.want = wanted;
            self.lower_want = None;
            return;
        }
        let lower = self.lower_want.get_or_insert(LowerWant {
            since: now,
            max: wanted,
        });
        lower.max = lower.max.max(wanted);
    }

    /// Takes a lower want that has lasted for `calm`, and forgets a refusal after the same time.
    pub(super) fn settle(&mut self, now: Duration, calm: Duration) {
        if let Some(answer) = self.answer
            && self.refused().is_some()
            && now.saturating_sub(answer.at) >= calm
        {
            self.answer = None;
        }
        if let Some(lower) = self.lower_want
            && now.saturating_sub(lower.since) >= calm
        {
            self.want = lower.max;
            self.lower_want = None;
            self.answer = None;
        }
    }

    pub(super) const fn is_confirmed(&self) -> bool {
        self.confirmed == self.sent
    }

    /// The job's charge: the most it can hold from now on (COORD1).
    pub(super) fn charge(&self) -> u64 {
        let limit = if self.is_confirmed() {
            self.limit
        } else {
            self.limit.max(self.sent_limit)
        };
        limit.max(self.held)
    }

    /// How far the job's charge will drop when it obeys and gives memory back.
    pub(super) fn coming(&self) -> u64 {
        let limit = if self.is_confirmed() {
            self.limit
        } else {
            self.sent_limit
        };
        self.charge() - limit
    }

    /// The limit below which the job refused to go when it was asked last.
    pub(super) fn refused(&self) -> Option<u64> {
        let answer = self.answer?;
        (answer.got > answer.asked).then_some(answer.got)
    }

    /// What the job should get, given its answers to former limits.
    pub(super) fn want(&self) -> Want {
        let floor = self.policy.floor_bytes;
        let (min, max) = match (self.answer, self.refused()) {
            (_, Some(got)) => (got, u64::MAX),
            (Some(answer), None) => (0, answer.got),
            (None, None) => (0, u64::MAX),
        };
        let floor = floor.min(max);
        let min = min.max(floor);
        Want {
            priority: self.policy.priority,
            floor,
            min,
            want: self.want.max(min).min(max),
        }
    }

    pub(super) fn send_limit(&mut self, limit_bytes: u64) -> Command {
        self.sent += 1;
        self.sent_limit = limit_bytes;
        Command::SetLimit {
            job: self.id,
            limit_bytes,
            version: self.sent,
        }
    }
}
