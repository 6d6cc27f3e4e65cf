//! The coordinator's record of one job, and the maximum that the job may hold according to that record.

use std::time::Duration;

use super::targets::Want;
use super::turns::{Seat, Seated};
use super::{Command, CoordinateError, JobId, JobPolicy, JobReport};
use crate::SleepState;
use crate::perf::PerfControl;

/// The highest version that is adopted from another coordinator. Half of all versions remain to be sent.
const MAX_ADOPTED: u64 = u64::MAX / 2;

#[derive(Clone, Debug)]
pub(super) struct CoordinatedJob {
    pub(super) id: JobId,
    pub(super) policy: JobPolicy,
    /// The newest version sent (COORD3).
    sent: u64,
    /// The newest version that the job confirmed.
    confirmed: u64,
    /// The last limit sent.
    sent_limit: u64,
    /// The limit in force at the job's last report.
    pub(super) limit: u64,
    /// Bytes that the job held at its last report, or its limit plus its deferred bytes if that is more.
    held: u64,
    /// Bytes that the job held at its last report.
    held_asleep: u64,
    /// Bytes that the job wants.
    want: Demand,
    /// Bytes that the job wants and does not return on request.
    guaranteed: Demand,
    /// The job's answer, if it set a limit other than the last one sent.
    answer: Option<OwnLimit>,
    pub(super) perf: PerfControl,
    turn: JobTurn,
}

/// A job's state in turns.
#[derive(Clone, Copy, Debug)]
struct JobTurn {
    seat: Seat,
    /// The time at which the job's seat last changed; `None` until the first decision.
    since: Option<Duration>,
    /// Whether the job has reported nothing yet.
    is_new: bool,
    /// The last order to sleep or wake.
    told_asleep: Option<bool>,
    /// Whether the job, since it was let in, has reported that it is awake.
    is_awake: bool,
    can_sleep: bool,
    wake_bytes: u64,
}

/// A limit that a job replaced with its own instead of obeying it.
#[derive(Clone, Copy, Debug)]
struct OwnLimit {
    asked: u64,
    got: u64,
    /// The time of the answer, since a job that refused may obey some time later.
    at: Duration,
}

/// Bytes that a job wants. A decrease counts only after a while.
#[derive(Clone, Copy, Debug)]
struct Demand {
    bytes: u64,
    /// A decrease that has not yet lasted long enough.
    lower: Option<LowerWant>,
}

/// The time since which a job has wanted less, and the most that it has wanted since then.
#[derive(Clone, Copy, Debug)]
struct LowerWant {
    since: Duration,
    max: u64,
}

impl Demand {
    const NONE: Self = Self {
        bytes: 0,
        lower: None,
    };

    /// Accepts an increase immediately, and records a decrease. Returns whether the demand has increased.
    fn report(&mut self, wanted: u64, now: Duration) -> bool {
        if wanted >= self.bytes {
            let has_increased = wanted > self.bytes;
            (self.bytes, self.lower) = (wanted, None);
            return has_increased;
        }
        let lower = self.lower.get_or_insert(LowerWant {
            since: now,
            max: wanted,
        });
        lower.max = lower.max.max(wanted);
        false
    }

    /// Accepts a decrease that has lasted for `calm`. Returns whether it has.
    fn settle(&mut self, now: Duration, calm: Duration) -> bool {
        let lasted = |lower: &LowerWant| now.saturating_sub(lower.since) >= calm;
        let Some(lower) = self.lower.take_if(|lower| lasted(lower)) else {
            return false;
        };
        self.bytes = lower.max;
        true
    }
}

impl CoordinatedJob {
    /// Makes a job that has not reported and may hold `may_hold` bytes. With turns, the job starts as
    /// [`Seat::Leaving`], which means that it is not admitted; without turns, it is [`Seat::In`] from the
    /// beginning.
    pub(super) const fn new(id: JobId, policy: JobPolicy, may_hold: u64, has_turns: bool) -> Self {
        Self {
            id,
            policy,
            sent: 0,
            confirmed: 0,
            sent_limit: 0,
            limit: may_hold,
            held: 0,
            held_asleep: may_hold,
            want: Demand::NONE,
            guaranteed: Demand::NONE,
            answer: None,
            perf: PerfControl::FULL,
            turn: JobTurn {
                seat: if has_turns { Seat::Leaving } else { Seat::In },
                since: None,
                is_new: has_turns,
                told_asleep: None,
                is_awake: false,
                can_sleep: false,
                wake_bytes: 0,
            },
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
        self.held_asleep = report.held_bytes;
        self.held = report
            .held_bytes
            .max(report.limit_bytes.saturating_add(report.deferred_bytes));
        if report.version > self.confirmed && report.limit_bytes != self.sent_limit {
            self.answer = Some(OwnLimit {
                asked: self.sent_limit,
                got: report.limit_bytes,
                at: now,
            });
        }
        self.confirmed = report.version;
        self.sleeps(&report, now);
        let whole = |bytes: u64| bytes.checked_next_multiple_of(step.max(1));
        let wanted = whole(report.wanted_bytes).unwrap_or(u64::MAX);
        if self.want.report(wanted, now) {
            // The demand has changed, so the job may now answer a limit differently.
            self.answer = None;
        }
        let guaranteed = report.guaranteed_bytes.and_then(whole);
        self.guaranteed.report(guaranteed.unwrap_or(u64::MAX), now);
        match self.charge().saturating_sub(allowed) {
            0 => Ok(()),
            _ if is_anothers => Ok(()),
            bytes => Err(CoordinateError::AboveLimit { bytes }),
        }
    }

    /// Processes the part of a report that is about sleep (COORD5).
    fn sleeps(&mut self, report: &JobReport, now: Duration) {
        let turn = &mut self.turn;
        turn.can_sleep = report.sleep.is_some();
        turn.wake_bytes = report.wake_bytes;
        let holds = self.limit > 0 || self.held > 0;
        let is_awake = report.sleep == Some(SleepState::Awake);
        let seat = match (turn.seat, report.sleep) {
            // A job that cannot sleep, or that held memory when it joined, is let in.
            (Seat::Leaving | Seat::Out, None) => Seat::In,
            (Seat::Leaving, _) if turn.is_new && is_awake && holds => Seat::In,
            (Seat::Leaving, Some(SleepState::Asleep)) if turn.told_asleep == Some(true) => {
                turn.seat = Seat::Out;
                Seat::Out
            }
            // Something other than this coordinator woke the job: a job reads its orders before it wakes,
            // and the last order was to sleep.
            (Seat::Out, Some(SleepState::Awake)) => Seat::Leaving,
            (seat, _) => seat,
        };
        turn.is_new = false;
        if seat != turn.seat {
            self.sit(seat, now);
        } else if seat == Seat::In && is_awake && !turn.is_awake {
            // The job's turn begins once it has woken.
            (turn.is_awake, turn.since) = (true, Some(now));
        }
    }

    pub(super) const fn seat(&self) -> Seat {
        self.turn.seat
    }

    pub(super) const fn sit(&mut self, seat: Seat, now: Duration) {
        self.turn.seat = seat;
        self.turn.since = Some(now);
        self.turn.is_awake = false;
    }

    /// Returns the bytes that the job should have in its turn.
    pub(super) fn need(&self, total: u64) -> u64 {
        let Want { want, .. } = self.full_want();
        want.max(self.turn.wake_bytes).min(total)
    }

    pub(super) fn seated(&mut self, total: u64, now: Duration) -> Seated {
        let need = self.need(total);
        Seated {
            seat: self.turn.seat,
            since: *self.turn.since.get_or_insert(now),
            priority: self.policy.priority,
            charge: self.charge(),
            need: match self.turn.seat {
                Seat::In => need,
                Seat::Leaving | Seat::Out => need.max(self.charge_awake()),
            },
            can_sleep: self.turn.can_sleep,
        }
    }

    /// Sends the job the order to sleep or wake that follows from its seat, if the order is new.
    pub(super) fn send_asleep(&mut self) -> Option<Command> {
        let asleep = self.turn.seat != Seat::In;
        if self.turn.told_asleep.replace(asleep) == Some(asleep) {
            return None;
        }
        let job = self.id;
        Some(Command::SetAsleep { job, asleep })
    }

    /// Accepts a decrease in demand that has lasted for `calm`, and forgets a refusal after the same time.
    pub(super) fn settle(&mut self, now: Duration, calm: Duration) {
        if let Some(answer) = self.answer
            && self.refused().is_some()
            && now.saturating_sub(answer.at) >= calm
        {
            self.answer = None;
        }
        if self.want.settle(now, calm) {
            self.answer = None;
        }
        self.guaranteed.settle(now, calm);
    }

    pub(super) const fn wants_memory(&self) -> bool {
        self.want.bytes > 0
    }

    pub(super) const fn is_confirmed(&self) -> bool {
        self.confirmed == self.sent
    }

    /// Returns the job's charge: the maximum that it can hold from now on (COORD1, COORD5).
    pub(super) fn charge(&self) -> u64 {
        match self.turn.seat {
            Seat::Out => self.held_asleep,
            Seat::In | Seat::Leaving => self.charge_awake(),
        }
    }

    fn charge_awake(&self) -> u64 {
        let limit = if self.is_confirmed() {
            self.limit
        } else {
            self.limit.max(self.sent_limit)
        };
        limit.max(self.held)
    }

    /// Returns the bytes by which the job's charge will drop when it has obeyed and released memory.
    pub(super) fn coming(&self) -> u64 {
        match self.turn.seat {
            Seat::In => {}
            Seat::Leaving => return self.charge(),
            Seat::Out => return 0,
        }
        let limit = if self.is_confirmed() {
            self.limit
        } else {
            self.sent_limit
        };
        self.charge() - limit
    }

    /// Returns the limit below which the job last refused to go.
    pub(super) fn refused(&self) -> Option<u64> {
        let answer = self.answer?;
        (answer.got > answer.asked).then_some(answer.got)
    }

    /// Returns the job's demand, given its answers to earlier limits.
    pub(super) fn want(&self) -> Want {
        match self.turn.seat {
            Seat::In => {
                let mut want = self.full_want();
                want.want = want.want.max(self.turn.wake_bytes);
                // A sleeping job holds nothing that it could report as its own.
                want.guaranteed = want.guaranteed.max(self.turn.wake_bytes);
                want
            }
            Seat::Leaving | Seat::Out => Want {
                priority: self.policy.priority,
                floor: 0,
                min: 0,
                want: 0,
                guaranteed: 0,
            },
        }
    }

    fn full_want(&self) -> Want {
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
            want: self.want.bytes.max(min).min(max),
            guaranteed: self.guaranteed.bytes,
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
