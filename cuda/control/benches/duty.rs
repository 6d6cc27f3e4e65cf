//! Measures, on a real clock, the share of the time that a job actually gets.
//!
//! `cargo bench -p larder-control --bench duty [-- SECONDS]` prints a markdown table. A launch
//! spins for some time, then lets the pacer pause it; each row runs for SECONDS (by default 1).
//! *pacer* pauses between launches; *end of run* sleeps once per step, according to AntMan's
//! formula. *worst* is the share farthest from the requested share among all steps but the first
//! two, from which the pacer learns. The benchmark only reports and asserts nothing, because
//! threads oversleep on a busy machine.
//!
//! Without `--bench`, as under `cargo test --benches`, it runs only a few steps.

use std::time::Duration;

use larder_control::{
    Clock, DutyCycle, Pacer, PerfControl, ResourceManagement, SystemClock, Waited,
};

/// The number of launches in a step, and the time for which each spins.
const LOADS: [(u32, Duration); 4] = [
    (1, Duration::from_millis(5)),
    (10, Duration::from_micros(500)),
    (100, Duration::from_micros(50)),
    (1000, Duration::from_micros(5)),
];

fn main() {
    let bench = std::env::args().any(|argument| argument == "--bench");
    let seconds = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok());
    let longest = match bench {
        true => Duration::from_secs_f64(seconds.unwrap_or(1.0)),
        false => Duration::from_millis(10),
    };
    println!("| asked | launches x us | pacer | worst | pauses, us | end of run | worst |");
    println!("|---|---|---|---|---|---|---|");
    for percent in [100, 75, 50, 25, 10] {
        let Ok(perf) = PerfControl::new(percent) else {
            continue;
        };
        for (launches, work) in LOADS {
            let paced = paced(perf, launches, work, longest);
            let slept = slept(perf, launches, work, longest);
            println!(
                "| {perf} | {launches} x {} | {:.2} % | {:.1} % | {} | {:.2} % | {:.1} % |",
                work.as_micros(),
                100.0 * paced.share(),
                100.0 * paced.worst,
                paced.longest_pause.as_micros(),
                100.0 * slept.share(),
                100.0 * slept.worst,
            );
        }
    }
}

struct Measured {
    busy: Duration,
    all: Duration,
    /// The step's share that is farthest from the requested share.
    worst: f64,
    longest_pause: Duration,
}

impl Measured {
    fn share(&self) -> f64 {
        self.busy.as_secs_f64() / self.all.as_secs_f64()
    }
}

/// Runs steps for the time `longest`. `step` receives the longest pause so far, which it updates,
/// and returns the time for which it was busy.
fn measure(
    clock: &SystemClock,
    perf: PerfControl,
    longest: Duration,
    mut step: impl FnMut(&mut Duration) -> Duration,
) -> Measured {
    let asked = f64::from(perf.percent()) / 100.0;
    let mut longest_pause = Duration::ZERO;
    for _ in 0..2 {
        step(&mut longest_pause);
    }
    longest_pause = Duration::ZERO;
    let (begin, mut busy, mut worst) = (clock.now(), Duration::ZERO, asked);
    while clock.now() - begin < longest {
        let start = clock.now();
        let worked = step(&mut longest_pause);
        let share = worked.as_secs_f64() / (clock.now() - start).as_secs_f64();
        busy += worked;
        if (share - asked).abs() > (worst - asked).abs() {
            worst = share;
        }
    }
    Measured {
        busy,
        all: clock.now() - begin,
        worst,
        longest_pause,
    }
}

fn paced(perf: PerfControl, launches: u32, work: Duration, longest: Duration) -> Measured {
    let clock = SystemClock::new();
    let duty_cycle = DutyCycle::new();
    let pacer = Pacer::new(clock, duty_cycle.reader());
    duty_cycle.set(perf);
    measure(&clock, perf, longest, |longest_pause| {
        let mut busy = Duration::ZERO;
        pacer.begin();
        for _ in 0..launches {
            busy += spin(&clock, work);
            let start = clock.now();
            let _ = pacer.launch_wait();
            *longest_pause = (*longest_pause).max(clock.now() - start);
        }
        let start = clock.now();
        let _ = pacer.end_wait();
        *longest_pause = (*longest_pause).max(clock.now() - start);
        busy
    })
}

fn slept(perf: PerfControl, launches: u32, work: Duration, longest: Duration) -> Measured {
    let clock = SystemClock::new();
    let management = ResourceManagement::new(clock);
    management.set_perf(perf);
    measure(&clock, perf, longest, |_| {
        let start = clock.now();
        let busy = (0..launches).map(|_| spin(&clock, work)).sum();
        let run = clock.now() - start;
        let _: Waited = management.finish_run(run);
        busy
    })
}

/// Keeps the processor busy for at least `work`. Returns how long it was busy.
fn spin(clock: &SystemClock, work: Duration) -> Duration {
    let start = clock.now();
    loop {
        let spent = clock.now() - start;
        if spent >= work {
            return spent;
        }
        std::hint::spin_loop();
    }
}
