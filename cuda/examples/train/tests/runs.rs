//! Whole training runs.

use super::common::{alone, assert_clean, together};
use super::{SMALL, gpu};
use crate::data::Random;
use crate::model::{Batch, Network};
use crate::train::{Asked, LAST, TrainReport, TrainSettings, train};

/// Seeds of deferred orders.
const SEEDS: u64 = 12;

#[test]
fn the_spirals_are_learned() {
    let _turn = together();
    let settings = TrainSettings {
        steps: 600,
        ..TrainSettings::new()
    };
    let report = train(&gpu(), &settings, || {}).unwrap();
    assert_eq!(report.wrong(), None, "{report}");
    let [before, after] = report.accuracy;
    assert!(before < 0.8 && after > 0.9, "{report}");
    let [first, last] = report.loss();
    assert!(last < first / 2.0, "{report}");
    assert_eq!(report.losses.len(), settings.steps);
}

#[test]
fn buffers_of_a_step_lie_where_the_plan_puts_them() {
    let _turn = together();
    let gpu = gpu();
    let report = train(&gpu, &SMALL, || {}).unwrap();
    let steps = report.steps;
    assert_eq!(steps.steps, SMALL.steps as u64);
    // The first step is recorded, and the second begins as one that is not known yet.
    assert!(steps.known_steps >= steps.steps - 2, "{report}");
    assert_eq!(steps.misses, 0, "{report}");
    assert!(steps.unplanned * 50 < steps.hits, "{report}");
    // The memory left is that of the model, the batches and the report, not of the steps.
    assert!(gpu.memory.stats().live_bytes < report.stats.peak_live_bytes / 2);
}

#[test]
fn any_order_of_the_streams_trains_the_same() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    control.poison(true);
    let report = train(&gpu(), &SMALL, || {}).unwrap();
    assert_clean(control);
    for seed in 0..SEEDS {
        control.schedule_deferred(seed);
        let deferred = train(&gpu(), &SMALL, || {}).unwrap();
        control.schedule_eagerly();
        assert_clean(control);
        assert_eq!(deferred.losses, report.losses, "seed {seed}");
        assert_eq!(deferred.picture, report.picture, "seed {seed}");
        assert_eq!(deferred.wrong(), None, "seed {seed}");
    }
    control.poison(false);
}

#[test]
fn the_last_steps_call_the_driver_for_no_memory() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    {
        let gpu = gpu();
        let report = train(&gpu, &SMALL, || control.reset_calls()).unwrap();
        assert_eq!(report.wrong(), None);
        let calls = control.call_table();
        let called = |name: &str| calls.iter().any(|(called, _)| called.starts_with(name));
        assert!(
            called("cuLaunchKernel") && called("cuMemcpyHtoDAsync"),
            "{calls:?}"
        );
        for name in [
            "cuMemAddress",
            "cuMemAlloc",
            "cuMemCreate",
            "cuMemFree",
            "cuMemHost",
            "cuMemMap",
            "cuMemRelease",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuEventCreate",
            "cuStreamCreate",
        ] {
            assert!(!called(name), "{name}: {calls:?}");
        }
        // In each step the host waits for the copy of a batch, not for a stream; it waits for streams
        // only to read results.
        let last = LAST as u64;
        let count = |name: &str| control.calls(Some(name));
        assert_eq!(count("cuCtxSynchronize"), 0, "{calls:?}");
        assert!(count("cuStreamSynchronize") < last / 10, "{calls:?}");
        assert!(count("cuEventSynchronize") <= last, "{calls:?}");
        // In each step, each stream waits once for the other: a batch is read, and written again.
        assert!(count("cuStreamWaitEvent") <= 2 * last, "{calls:?}");
    }
    assert_clean(control);
}

#[test]
fn host_and_device_agree_about_a_trained_model() {
    let _turn = together();
    let gpu = gpu();
    let mut random = Random::new(3);
    let mut model = Network::new(&gpu, 16, &mut random).unwrap();
    let mut batch = Batch::new(&gpu, 50).unwrap();
    batch.draw(&mut random).unwrap();
    let mut loss = gpu.memory.zeros::<f32>(&gpu.compute, 1).unwrap();
    for _ in 0..10 {
        model
            .step(&gpu, &mut batch, 0.5, loss.as_view_mut())
            .unwrap();
    }
    let logits = model.logits(&gpu, &mut batch).unwrap();
    let on_host = model.on_host().unwrap();
    let (points, _) = batch.on_host().unwrap();
    assert_eq!(points.len(), 2 * logits.len());
    for (point, logit) in points.chunks_exact(2).zip(logits) {
        let expected = on_host.logit([point[0], point[1]]);
        let logit = f64::from(logit) + f64::from(on_host.b2[0]);
        assert!((logit - expected).abs() < 1e-3, "{logit} for {expected}");
    }
}

#[test]
fn a_report_says_what_is_wrong() {
    let asked = |calls, pinned_bytes| Asked {
        calls,
        pinned_bytes,
    };
    let good = TrainReport {
        losses: (0..100).map(|step| 1.0 / (step + 1) as f32).collect(),
        accuracy: [0.5, 1.0],
        picture: String::new(),
        stats: Default::default(),
        steps: Default::default(),
        asked: [asked(3, 5), asked(0, 0)],
    };
    assert_eq!(good.wrong(), None);
    let mut rising = good.clone();
    rising.losses.reverse();
    assert!(rising.wrong().unwrap().contains("fall"));
    let lost = TrainReport {
        losses: vec![f32::NAN; 100],
        ..good.clone()
    };
    assert!(lost.wrong().unwrap().contains("fall"));
    for late in [asked(1, 0), asked(0, 1)] {
        let greedy = TrainReport {
            asked: [asked(3, 5), late],
            ..good.clone()
        };
        assert!(greedy.wrong().unwrap().contains("memory"));
    }
}
