//! When a status is written and what it contains (am_7), on a clock that stands still.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_control::{
    BusId, Clock, DeviceUsage, JobStatus, ManualClock, Statistics, StatusFile, SwapReason,
};
use larder_model::Random;
use larder_model::antman::{Averages, Reason, by_gpu, swap_reason};

/// The effect of a run or a check on the status.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Recorded {
    Noted,
    Unchanged,
    Written,
    Refused,
}

/// A job with a status, of which the first `refuse` writes are refused.
struct Rig {
    clock: Arc<ManualClock>,
    statistics: Statistics,
    usage: DeviceUsage,
    gpus: Vec<BusId>,
    job: Option<JobStatus>,
    written: Vec<StatusFile>,
    refuse: u32,
}

impl Rig {
    fn new() -> Self {
        Self {
            clock: Arc::new(ManualClock::new()),
            statistics: Statistics::default(),
            usage: DeviceUsage::default(),
            gpus: vec!["00:1e.0".parse().unwrap()],
            job: None,
            written: Vec::new(),
            refuse: 0,
        }
    }

    fn run(&mut self, graph: u64, micros: u64) -> Recorded {
        self.run_for(graph, Duration::from_micros(micros))
    }

    fn run_for(&mut self, graph: u64, took: Duration) -> Recorded {
        match self.statistics.record(graph, took, self.clock.now()) {
            true => self.check(),
            false => Recorded::Noted,
        }
    }

    fn check(&mut self) -> Recorded {
        let usage = self.gpus.iter().map(|gpu| (*gpu, self.usage));
        let job = self.job.clone();
        let Some(status) = self.statistics.check(self.clock.now(), usage, job, false) else {
            return Recorded::Unchanged;
        };
        if self.refuse > 0 {
            self.refuse -= 1;
            return Recorded::Refused;
        }
        self.written.push(status);
        self.statistics.written();
        Recorded::Written
    }

    fn later(&mut self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    fn last(&self) -> &StatusFile {
        self.written.last().unwrap()
    }
}

#[test]
fn am_7_the_first_run_writes_and_the_second_within_ten_seconds_does_not() {
    let mut rig = Rig::new();
    assert_eq!(rig.run(1, 1000), Recorded::Written);
    assert_eq!(rig.last().mini_batch_micros, 1000);
    assert_eq!(rig.last().durations["graph_1"], 1000);
    rig.clock.advance(Duration::from_millis(9_999));
    rig.usage.device_live_bytes = 5;
    assert_eq!(rig.run(1, 5000), Recorded::Noted);
    rig.clock.advance(Duration::from_millis(1));
    assert_eq!(rig.run(1, 3000), Recorded::Written);
    assert_eq!(rig.last().mini_batch_micros, 3000);
    assert_eq!(rig.written.len(), 2);
}

#[test]
fn am_7_a_run_of_more_than_ten_times_the_oldest_writes_at_once_either_way() {
    for (first, second, expected) in [
        (100, 1000, Recorded::Noted),
        (100, 1001, Recorded::Written),
        (100, 1100, Recorded::Written),
        (1000, 100, Recorded::Noted),
        (1001, 100, Recorded::Written),
    ] {
        let mut rig = Rig::new();
        assert_eq!(rig.run(1, first), Recorded::Written);
        assert_eq!(rig.run(1, second), expected, "{first} then {second}");
    }
    // A graph's first run is not compared with anything.
    let mut rig = Rig::new();
    rig.run(1, 100);
    assert_eq!(rig.run(2, 100_000), Recorded::Noted);
}

#[test]
fn am_7_an_average_that_moves_by_one_percent_is_written_and_less_is_not() {
    // The first run takes 10,000 us, and the second one changes the average of both.
    for (second, expected) in [
        (10_000, Recorded::Unchanged),
        (10_180, Recorded::Unchanged), // 0.9 %
        (10_198, Recorded::Unchanged), // 0.99 %
        (10_200, Recorded::Written),   // 1 %
        (9_802, Recorded::Unchanged),
        (9_800, Recorded::Written),
    ] {
        let mut rig = Rig::new();
        rig.run(1, 10_000);
        rig.later(10);
        assert_eq!(rig.run(1, second), expected, "{second}");
    }
}

#[test]
fn am_7_a_history_is_nine_runs_long() {
    let mut rig = Rig::new();
    rig.run(1, 180);
    for _ in 0..8 {
        rig.run(1, 90);
    }
    // After nine runs, the first one still counts.
    rig.later(10);
    assert_eq!(rig.check(), Recorded::Written);
    assert_eq!(rig.last().durations["graph_1"], 100);
    // The tenth run drops the first one.
    rig.later(10);
    assert_eq!(rig.run(1, 90), Recorded::Written);
    assert_eq!(rig.last().durations["graph_1"], 90);
}

#[test]
fn am_7_the_reason_for_the_host_is_fragmentation_if_all_would_have_fitted() {
    for (device, host, pool, expected, antman) in [
        (900, 0, 100, SwapReason::None, Reason::None),
        (60, 40, 100, SwapReason::Fragment, Reason::Oom),
        (60, 41, 100, SwapReason::Oom, Reason::Fragment),
        (u64::MAX, 1, u64::MAX, SwapReason::Oom, Reason::Fragment),
    ] {
        let mut rig = Rig::new();
        let usage = &mut rig.usage;
        usage.device_peak_bytes = device;
        usage.host_peak_bytes = host;
        usage.device_reserved_bytes = pool;
        rig.run(1, 1);
        let gpu = rig.gpus[0];
        let numbers = format!("{device} {host} {pool}");
        assert_eq!(rig.last().gpus[&gpu].swap_reason, expected, "{numbers}");
        assert_eq!(rig.last().gpus[&gpu].used_by_driver, -1);
        assert_eq!(swap_reason(device, host, pool), antman, "{numbers}");
    }
}

#[test]
fn am_7_each_of_the_seven_numbers_is_a_change() {
    let mut rig = Rig::new();
    rig.run(1, 1000);
    let fields: [fn(&mut DeviceUsage) -> &mut u64; 7] = [
        |usage| &mut usage.device_peak_bytes,
        |usage| &mut usage.device_live_bytes,
        |usage| &mut usage.device_reserved_bytes,
        |usage| &mut usage.device_stable_bytes,
        |usage| &mut usage.host_peak_bytes,
        |usage| &mut usage.host_live_bytes,
        |usage| &mut usage.host_limit_bytes,
    ];
    for field in fields {
        rig.later(10);
        assert_eq!(rig.run(1, 1000), Recorded::Unchanged);
        *field(&mut rig.usage) += 1;
        rig.later(10);
        assert_eq!(rig.run(1, 1000), Recorded::Written);
    }
}

#[test]
fn am_7_a_check_that_wrote_nothing_counts_for_the_next_ten_seconds() {
    let mut rig = Rig::new();
    rig.run(1, 1000);
    rig.later(10);
    assert_eq!(rig.run(1, 1000), Recorded::Unchanged);
    rig.later(9);
    rig.usage.device_live_bytes = 1;
    assert_eq!(rig.run(1, 1000), Recorded::Noted);
    rig.later(1);
    assert_eq!(rig.run(1, 1000), Recorded::Written);
}

#[test]
fn am_7_a_graph_is_fresh_for_a_hundred_seconds_and_then_forgotten() {
    let mut rig = Rig::new();
    rig.run(1, 5000);
    rig.later(20);
    rig.run(2, 100);
    assert_eq!(rig.last().mini_batch_micros, 5000);
    rig.clock.advance(Duration::from_millis(79_999));
    rig.usage.device_live_bytes += 1;
    assert_eq!(rig.run(2, 100), Recorded::Written);
    assert_eq!(rig.last().mini_batch_micros, 5000);
    rig.later(10);
    rig.usage.device_live_bytes += 1;
    assert_eq!(rig.run(2, 100), Recorded::Written);
    assert_eq!(rig.last().mini_batch_micros, 100);
    assert!(!rig.last().durations.contains_key("graph_1"));
    assert_eq!(rig.statistics.graphs(), 1);
}

#[test]
fn am_7_averages_of_fresh_graphs_are_upstreams_which_forgets_none() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let mut rig = Rig::new();
        let mut antman = Averages::default();
        for _ in 0..40 {
            let (graph, micros) = (random.next_u64() % 3, random.next_u64() % 100_000);
            rig.run(graph, micros);
            antman.record(graph, micros);
            rig.later(random.next_u64() % 3);
        }
        // A change makes the check write everything.
        rig.usage.device_live_bytes += 1;
        assert_eq!(rig.check(), Recorded::Written);
        let _ = antman.check();
        assert_eq!(rig.last().durations, named(&antman), "seed {seed}");
        let graphs = rig.statistics.graphs();
        rig.later(100);
        rig.run(9, 1);
        antman.record(9, 1);
        let _ = antman.check();
        assert_eq!(rig.statistics.graphs(), 1);
        assert_eq!(named(&antman).len(), graphs + 1);
    }
}

/// Returns the averages under the names that a status uses.
fn named(antman: &Averages) -> BTreeMap<String, u64> {
    let averages = antman.averages();
    let named = averages.map(|(graph, micros)| (format!("graph_{graph}"), micros));
    named.collect()
}

#[test]
fn am_7_a_graph_that_is_forgotten_is_a_change() {
    let mut rig = Rig::new();
    rig.run(1, 5000);
    rig.run(2, 100);
    rig.later(50);
    rig.run(2, 100);
    rig.later(50);
    assert_eq!(rig.run(2, 100), Recorded::Written);
    assert_eq!(rig.last().durations.len(), 1);
}

#[test]
fn am_7_what_could_not_be_written_is_written_by_the_next_check_with_its_peak() {
    let mut rig = Rig::new();
    rig.usage.device_peak_bytes = 10;
    rig.refuse = 2;
    assert_eq!(rig.run(1, 5), Recorded::Refused);
    rig.usage.device_peak_bytes = 70;
    assert_eq!(rig.run(1, 5), Recorded::Noted);
    rig.later(10);
    assert_eq!(rig.run(1, 5), Recorded::Refused);
    rig.usage.device_peak_bytes = 20;
    rig.later(10);
    assert_eq!(rig.run(1, 5), Recorded::Written);
    let gpu = rig.gpus[0];
    assert_eq!(rig.last().gpus[&gpu].usage.device_peak_bytes, 70);
    // The peak was written, so the next interval has its own peak.
    rig.later(10);
    rig.run(1, 5000);
    assert_eq!(rig.last().gpus[&gpu].usage.device_peak_bytes, 20);
}

#[test]
fn devices_of_one_gpu_are_added_up_and_antman_writes_the_last() {
    let mut rig = Rig::new();
    let gpu = rig.gpus[0];
    rig.gpus.push(gpu);
    let bytes = 6;
    rig.usage = DeviceUsage {
        device_peak_bytes: bytes,
        device_live_bytes: bytes,
        device_reserved_bytes: bytes,
        device_stable_bytes: bytes,
        host_peak_bytes: bytes,
        host_live_bytes: bytes,
        host_limit_bytes: bytes,
    };
    rig.run(1, 1);
    let usage = rig.last().gpus[&gpu].usage;
    let text = serde_json::to_value(usage).unwrap();
    let mut numbers = text.as_object().unwrap().values();
    assert!(numbers.all(|number| number == 12), "{text}");
    let antman = by_gpu(&[("00:1e.0", 5), ("00:1e.0", 6)]);
    assert_eq!(antman["00:1e.0"], 6);
}

#[test]
fn the_jobs_own_words_are_a_change_and_the_time_of_writing_is_none() {
    let mut rig = Rig::new();
    let mut job = JobStatus::default();
    rig.job = Some(job.clone());
    rig.run(1, 1000);
    job.written_at_unix_ms = 5;
    rig.job = Some(job.clone());
    assert_eq!(rig.check(), Recorded::Unchanged);
    job.deferred_bytes = 5;
    rig.job = Some(job);
    assert_eq!(rig.check(), Recorded::Written);
    assert_eq!(rig.last().larder.as_ref().unwrap().deferred_bytes, 5);
}

#[test]
fn runs_of_no_time_and_of_all_time_are_taken() {
    let mut rig = Rig::new();
    assert_eq!(rig.run(1, 0), Recorded::Written);
    rig.later(10);
    assert_eq!(rig.run(1, 0), Recorded::Unchanged);
    assert_eq!(rig.run_for(1, Duration::MAX), Recorded::Written);
    assert_eq!(rig.run_for(1, Duration::MAX), Recorded::Unchanged);
    assert_eq!(rig.last().mini_batch_micros, u64::MAX);
    assert!(rig.clock.now() > Duration::ZERO);
}

#[test]
fn am_7_an_average_that_creeps_is_written_when_it_is_one_percent_from_what_was_written() {
    let mut rig = Rig::new();
    let mut antman = Averages::default();
    for (micros, expected, upstreams) in [
        (10_000, Recorded::Unchanged, true),
        (10_090, Recorded::Unchanged, false),
        (10_180, Recorded::Written, false),
        (10_270, Recorded::Unchanged, false),
    ] {
        for _ in 0..9 {
            rig.run(1, micros);
            antman.record(1, micros);
        }
        assert_eq!(rig.check(), expected, "{micros}");
        // Upstream compares with the last check, whether or not that check wrote.
        assert_eq!(antman.check(), upstreams, "{micros}");
        rig.clock.advance(Duration::from_secs(1));
    }
}

#[test]
fn graphs_without_end_are_remembered_up_to_a_bound_and_the_status_can_be_read() {
    let mut rig = Rig::new();
    for graph in 0..12_000 {
        rig.clock.advance(Duration::from_micros(1));
        let _ = rig.run_for(u64::MAX - graph, Duration::from_secs(1 << 44));
    }
    assert_eq!(rig.statistics.graphs(), 4096);
    let _ = rig.check();
    let status = rig.last();
    assert!(StatusFile::parse(status.to_text()).is_ok());
    // The graphs that ran last are kept.
    let key = |graph| format!("graph_{}", u64::MAX - graph);
    assert!(status.durations.contains_key(&key(11_999)));
    assert!(status.durations.contains_key(&key(12_000 - 4096)));
    assert!(!status.durations.contains_key(&key(12_000 - 4097)));
}
