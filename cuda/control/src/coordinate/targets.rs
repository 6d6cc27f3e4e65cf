//! The memory that each job would have if memory could move instantly.
//!
//! Each job first gets its floor, and then the memory that it refused to release. The rest goes to the jobs
//! with the highest priority, up to the bytes that they want and do not return on request, and then to those
//! with the next priority. What is left after that goes to the jobs in the same order, up to all bytes that they
//! want. Jobs with the same priority get equal amounts above their floors, up to the bytes that each wants
//! (max-min fairness).

/// A job's demand: the minimum and the maximum that it should get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Want {
    pub(super) priority: u32,
    /// The limit promised to the job.
    pub(super) floor: u64,
    /// The limit below which the job refused to go; at least `floor`.
    pub(super) min: u64,
    /// Bytes that the job wants; at least `min`.
    pub(super) want: u64,
    /// The part of `want` that the job does not return on request.
    pub(super) guaranteed: u64,
}

/// Returns the limits that the jobs should have. If the floors fit in `total`, so do the limits. O(jobs
/// squared).
pub(super) fn targets(total: u64, wants: &[Want]) -> Vec<u64> {
    let mut left = total;
    let mut targets: Vec<_> = wants
        .iter()
        .map(|want| {
            let floor = want.floor.min(left);
            left -= floor;
            floor
        })
        .collect();
    for (target, want) in targets.iter_mut().zip(wants) {
        let more = want.min.saturating_sub(*target).min(left);
        *target += more;
        left -= more;
    }
    share(&mut targets, &mut left, wants, |want| {
        want.guaranteed.min(want.want)
    });
    share(&mut targets, &mut left, wants, |want| want.want);
    targets
}

/// Divides what is left among the jobs, up to a number of bytes for each.
fn share(targets: &mut [u64], left: &mut u64, wants: &[Want], most: impl Fn(&Want) -> u64) {
    let mut order: Vec<_> = (0..wants.len()).collect();
    // Within a priority, the jobs that want the least above their floors come first, so that the others divide
    // the rest.
    order.sort_by_key(|&index| {
        let want = &wants[index];
        (
            core::cmp::Reverse(want.priority),
            most(want).saturating_sub(targets[index]),
            index,
        )
    });
    for (place, &index) in order.iter().enumerate() {
        let want = &wants[index];
        let equals = order[place..]
            .iter()
            .take_while(|&&other| wants[other].priority == want.priority);
        let share = *left / equals.count() as u64;
        let more = most(want).saturating_sub(targets[index]).min(share);
        targets[index] += more;
        *left -= more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(priority: u32, floor: u64, want: u64) -> Want {
        let min = floor;
        Want {
            priority,
            floor,
            min,
            want,
            guaranteed: want,
        }
    }

    #[test]
    fn what_is_lent_comes_after_what_every_job_wants_for_itself() {
        let lent = |priority, guaranteed, all| Want {
            guaranteed,
            ..want(priority, 0, all)
        };
        assert_eq!(targets(100, &[lent(9, 20, 90), want(1, 0, 50)]), [50, 50]);
        assert_eq!(targets(100, &[lent(9, 20, 90), lent(1, 0, 50)]), [90, 10]);
        assert_eq!(targets(100, &[lent(1, 30, 90), lent(1, 30, 90)]), [50, 50]);
        assert_eq!(targets(100, &[lent(1, 10, 90), lent(1, 40, 90)]), [35, 65]);
        assert_eq!(targets(100, &[lent(1, 200, 40), want(1, 0, 90)]), [40, 60]);
    }

    #[test]
    fn the_highest_priority_gets_what_it_wants_above_the_floors() {
        let wants = [want(1, 10, 90), want(9, 0, 70), want(5, 5, 50)];
        assert_eq!(targets(100, &wants), [10, 70, 20]);
        assert_eq!(targets(1000, &wants), [90, 70, 50]);
    }

    #[test]
    fn equals_share_what_is_left_and_take_no_more_than_they_want() {
        let wants = [want(1, 0, 90), want(1, 0, 10), want(1, 0, 80)];
        assert_eq!(targets(100, &wants), [45, 10, 45]);
        assert_eq!(targets(101, &wants), [46, 10, 45]);
    }

    #[test]
    fn what_a_job_refuses_to_give_up_comes_after_the_floors_and_before_the_wants() {
        let mut stuck = want(1, 0, 60);
        stuck.min = 60;
        assert_eq!(targets(100, &[stuck, want(9, 50, 90)]), [50, 50]);
        assert_eq!(targets(100, &[stuck, want(9, 0, 90)]), [60, 40]);
    }

    #[test]
    fn floors_that_do_not_fit_are_cut_and_never_exceed_the_total() {
        assert_eq!(targets(100, &[want(1, 60, 60), want(2, 60, 90)]), [60, 40]);
        assert_eq!(targets(0, &[want(1, 60, 60)]), [0]);
        assert_eq!(targets(100, &[]), [0; 0]);
    }
}
