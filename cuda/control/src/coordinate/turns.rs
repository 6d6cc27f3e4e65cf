//! The turns on a device that is too small for all jobs: jobs that are *in* have the device, and the others
//! sleep or are ordered to sleep.
//!
//! JOBTURN1. A job is let in only if it fits in what remains after all charges and the bytes that the jobs
//! *in* may still get. So no two awake jobs have needs that together exceed the total, unless one of them
//! cannot sleep.
//! JOBTURN2. No job is sent out before the end of its turn. A turn is the minimum turn multiplied by the job's
//! priority.
//! JOBTURN3. Jobs are let in in the order in which they began to wait. A job that has waited for a minimum
//! turn is no longer overtaken, so it waits for at most one turn of each other job, and for those jobs to
//! fall asleep.
//! JOBTURN4. If a job does not or cannot sleep although it is ordered to, it delays only jobs that do not fit
//! next to it.

use std::time::Duration;

/// Maximum length of a turn, in minimum turns.
const LONGEST: u32 = 10;

/// A job's relation to the device: its seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seat {
    /// The job has the device, or is ordered to wake.
    In,
    /// The job is ordered to sleep, and its memory counts until it sleeps.
    Leaving,
    /// The job sleeps.
    Out,
}

/// A job's state for turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seated {
    pub(super) seat: Seat,
    /// If the job is in, the time at which it was let in or, after that, woke; otherwise, the time at which it
    /// began to wait.
    pub(super) since: Duration,
    pub(super) priority: u32,
    /// The job's charge in its present seat: the maximum that it can hold from now on (COORD1, COORD5).
    pub(super) charge: u64,
    /// Bytes that the job is charged once it is in.
    pub(super) need: u64,
    pub(super) can_sleep: bool,
}

impl Seated {
    fn is_over(&self, turn: Duration, now: Duration) -> bool {
        let turn = turn.saturating_mul(self.priority.clamp(1, LONGEST));
        now.saturating_sub(self.since) >= turn
    }

    /// Returns the bytes that no other job can have.
    fn reserved(&self) -> u128 {
        match self.seat {
            Seat::In => self.charge.max(self.need).into(),
            Seat::Leaving | Seat::Out => self.charge.into(),
        }
    }
}

/// Returns the jobs whose seats change, with their new seats. O(jobs squared).
pub(super) fn moves(
    total: u64,
    turn: Duration,
    now: Duration,
    jobs: &[Seated],
) -> Vec<(usize, Seat)> {
    let mut moves = Vec::new();
    let total = u128::from(total);
    let mut reserved: u128 = jobs.iter().map(Seated::reserved).sum();
    let mut waiting: Vec<usize> = (0..jobs.len())
        .filter(|&index| jobs[index].seat != Seat::In)
        .collect();
    let leaving = |job: &Seated| match job.seat {
        Seat::Leaving => job.reserved(),
        Seat::In | Seat::Out => 0,
    };
    waiting.sort_by_key(|&index| {
        let job = &jobs[index];
        // Jobs that still hold memory that others need are let in last.
        let leaves = leaving(job) > 0;
        let rank = core::cmp::Reverse(job.priority);
        (leaves, job.since, rank, index)
    });
    let is_late = |job: &Seated| now.saturating_sub(job.since) >= turn;
    let coming: u128 = jobs.iter().map(leaving).sum();
    let mut head: Option<&Seated> = None;
    let mut all_fit = true;
    for index in waiting {
        let job = &jobs[index];
        let with_it = reserved - job.reserved() + u128::from(job.need);
        let may_overtake = match job.seat {
            Seat::Leaving if leaving(job) > 0 => all_fit,
            _ => head.is_none_or(|head| !is_late(head)),
        };
        if with_it <= total && may_overtake {
            reserved = with_it;
            moves.push((index, Seat::In));
            continue;
        }
        all_fit = false;
        if head.is_none() {
            let stays = |other: &&Seated| match other.seat {
                Seat::In => !other.can_sleep,
                Seat::Leaving => is_late(other),
                Seat::Out => false,
            };
            let others = jobs.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.map(|(_, other)| other).filter(stays);
            let stay: u128 = others.map(Seated::reserved).sum();
            if stay + u128::from(job.need) <= total {
                head = Some(job);
                let missing = with_it.saturating_sub(total);
                let coming = coming - leaving(job);
                send_out(missing.saturating_sub(coming), turn, now, jobs, &mut moves);
            }
        }
    }
    if head.is_none() {
        // The jobs that are in may now want more.
        let missing = reserved.saturating_sub(total).saturating_sub(coming);
        send_out(missing, turn, now, jobs, &mut moves);
    }
    moves
}

/// Sends out jobs whose turns are over, starting with the job that has been in for the longest time. Sends out
/// none if that would not free enough.
fn send_out(
    mut missing: u128,
    turn: Duration,
    now: Duration,
    jobs: &[Seated],
    moves: &mut Vec<(usize, Seat)>,
) {
    let mut over: Vec<usize> = (0..jobs.len())
        .filter(|&index| {
            let job = &jobs[index];
            job.seat == Seat::In && job.can_sleep && job.is_over(turn, now)
        })
        .collect();
    over.sort_by_key(|&index| jobs[index].since);
    let mut out = Vec::new();
    for index in over {
        if missing == 0 {
            break;
        }
        missing = missing.saturating_sub(jobs[index].reserved());
        out.push((index, Seat::Leaving));
    }
    if missing == 0 {
        moves.extend(out);
    }
}
