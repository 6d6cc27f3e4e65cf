//! The requests of a day, drawn from a seed: when they arrive at which model, and how long they are.

use std::f64::consts::TAU;

/// Decode steps of a day. Requests that are unfinished at its end are finished afterwards.
pub(crate) const STEPS: u32 = 600;

/// Requests of a model in each step, on average over the day.
const RATE: f64 = 0.75;

/// How the traffic of the two models changes over a day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Traffic {
    /// One model has nearly all traffic in the first half of the day, and the other one in the second half.
    Turns,
    /// One model's traffic peaks when the other's is lowest.
    Opposed,
    /// Both peak at the same time.
    Together,
    /// Little traffic, and bursts of either model at random times.
    Bursts,
}

impl Traffic {
    pub(crate) const ALL: [Self; 4] = [Self::Turns, Self::Opposed, Self::Together, Self::Bursts];
}

/// A prompt, and the length of its answer, which the server does not know in advance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// Index among the requests of the day.
    pub(crate) id: usize,
    pub(crate) model: usize,
    /// Step of its arrival.
    pub(crate) arrival: u32,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Tokens of the answer.
    pub(crate) output: usize,
}

/// Draws the requests of a day, in the order of their arrival, with `load` times the usual traffic.
pub(crate) fn requests(traffic: Traffic, load: f64, seed: u64) -> Vec<Request> {
    let mut random = Random(seed);
    let mut bursts = [0; 2];
    let mut requests = Vec::new();
    for arrival in 0..STEPS {
        let wave = (TAU * f64::from(arrival) / f64::from(STEPS)).sin();
        for (model, burst) in bursts.iter_mut().enumerate() {
            // Two bursts of a model in a day; eight in a day of bursts, and none if the models take turns.
            let is_turn = (arrival < STEPS / 2) == (model == 0);
            let (level, chance) = match traffic {
                Traffic::Turns => (if is_turn { 1.9 } else { 0.1 }, 0.0),
                Traffic::Opposed if model == 1 => (1.0 - 0.9 * wave, 2.0),
                Traffic::Opposed | Traffic::Together => (1.0 + 0.9 * wave, 2.0),
                Traffic::Bursts => (0.4, 8.0),
            };
            if random.unit() < chance / f64::from(STEPS) {
                *burst = 15 + (random.unit() * 30.0) as u32;
            }
            let in_burst = if *burst > 0 { 2.0 } else { 0.0 };
            *burst = burst.saturating_sub(1);
            for _ in 0..random.poisson(load * RATE * (level + in_burst)) {
                requests.push(Request {
                    id: requests.len(),
                    model,
                    arrival,
                    prompt: random.long_tailed(24.0, 1.3, 1024.0),
                    output: random.long_tailed(16.0, 1.5, 512.0),
                });
            }
        }
    }
    requests
}

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    /// Draws a number above 0, and at most 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // An `f64` holds 53 bits exactly.
        (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Draws how many of many independent arrivals come in one step.
    fn poisson(&mut self, mean: f64) -> u32 {
        let mut left = self.unit();
        let mut count = 0;
        while left > (-mean).exp() {
            left *= self.unit();
            count += 1;
        }
        count
    }

    /// Draws a length of a Pareto distribution, cut at `max`: most are near `min`, and a few are many times longer.
    fn long_tailed(&mut self, min: f64, shape: f64, max: f64) -> usize {
        (min * self.unit().powf(-1.0 / shape)).min(max) as usize
    }
}
