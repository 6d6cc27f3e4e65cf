//! Contenders in alternating rounds.
//!
//! The speed of a shared machine drifts by more than contenders differ, so times of separate runs cannot be
//! compared. Within a round all contenders run close together, and ratios are taken within a round only.

use larder_cli::numbers::median;

/// The time of each contender in each round, in the unit that the contenders use.
#[derive(Debug, Clone, PartialEq)]
pub struct Rounds {
    /// Times by contender, then by round.
    times: Vec<Vec<f64>>,
}

/// One contender's times divided by another's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratios {
    /// The median ratio of the rounds.
    pub median: f64,
    /// The smallest ratio.
    pub min: f64,
    /// The largest ratio.
    pub max: f64,
}

impl Rounds {
    /// Times every contender once per round, in reverse order in every other round, for at least one round.
    ///
    /// # Errors
    /// The first error of `time`.
    pub fn run<C, E>(
        contenders: &mut [C],
        rounds: usize,
        mut time: impl FnMut(&mut C) -> Result<f64, E>,
    ) -> Result<Self, E> {
        let mut times = vec![Vec::new(); contenders.len()];
        for round in 0..rounds.max(1) {
            for turn in 0..contenders.len() {
                // The order changes, so that no contender always runs after the same neighbour.
                let place = match round % 2 {
                    0 => turn,
                    _ => contenders.len() - 1 - turn,
                };
                times[place].push(time(&mut contenders[place])?);
            }
        }
        Ok(Self { times })
    }

    /// Returns a contender's median time.
    ///
    /// # Panics
    /// If there is no such contender.
    #[must_use]
    pub fn median(&self, contender: usize) -> f64 {
        median(self.times[contender].clone()).unwrap_or(f64::NAN)
    }

    /// Returns the ratios of a contender's time to that of `base` in the same round.
    ///
    /// # Panics
    /// If there are no such contenders.
    #[must_use]
    pub fn ratios(&self, contender: usize, base: usize) -> Ratios {
        let rounds = self.times[contender].iter().zip(&self.times[base]);
        let ratios: Vec<f64> = rounds.map(|(time, base)| time / base).collect();
        Ratios {
            min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            max: ratios.iter().copied().fold(0.0, f64::max),
            median: median(ratios).unwrap_or(f64::NAN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine slows down tenfold; the ratio must stay the same.
        let mut contenders = [(vec![10.0, 20.0, 100.0], 0), (vec![5.0, 20.0, 50.0], 0)];
        let time = |(times, calls): &mut (Vec<f64>, usize)| {
            *calls += 1;
            Ok::<_, ()>(times[*calls - 1])
        };
        let rounds = Rounds::run(&mut contenders, 3, time).unwrap();
        let [median, min, max] = [0.5, 0.5, 1.0];
        assert_eq!(rounds.ratios(1, 0), Ratios { median, min, max });
        assert!((rounds.median(1) - 20.0).abs() < 1e-9);
    }

    #[test]
    fn every_other_round_runs_in_reverse() {
        let mut order = Vec::new();
        let time = |name: &mut char| {
            order.push(*name);
            Ok::<_, ()>(1.0)
        };
        Rounds::run(&mut ['a', 'b', 'c'], 2, time).unwrap();
        assert_eq!(order, ['a', 'b', 'c', 'c', 'b', 'a']);
    }

    #[test]
    fn the_first_error_ends_the_rounds() {
        let mut calls = 0;
        let time = |bad: &mut bool| {
            calls += 1;
            if *bad { Err("bad") } else { Ok(1.0) }
        };
        assert_eq!(Rounds::run(&mut [false, true, false], 5, time), Err("bad"));
        assert_eq!(calls, 2);
    }
}
