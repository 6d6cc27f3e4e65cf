//! Settings of steps: one process, so one test.

use larder::{StepSettings, StepsInUse};

#[global_allocator]
static HEAP: larder::Larder = larder::Larder::new();

#[test]
fn settings_hold_from_the_first_step_on() {
    let settings = StepSettings {
        first_step: 3,
        threshold_bytes: 100_000,
        cap_bytes: 1 << 20,
        ..StepSettings::new()
    };
    settings.apply().unwrap();
    for _ in 0..8 {
        let _step = larder::step();
        let below = vec![1u8; 100_000];
        let above = vec![2u8; 100_001];
        assert!(below.iter().all(|byte| *byte == 1) && above.iter().all(|byte| *byte == 2));
    }
    let steps = HEAP.stats().steps;
    assert_eq!(
        (steps.steps, steps.known_steps),
        (5, 4),
        "three had no effect"
    );
    assert_eq!((steps.hits, steps.unplanned), (3, 2), "one block a step");
    for _ in 0..4 {
        let _step = larder::step_keyed(1);
        let large = vec![3u8; 2 << 20];
        assert!(large.iter().all(|byte| *byte == 3));
    }
    let capped = HEAP.stats().steps;
    assert_eq!(capped.hits, steps.hits, "a plan above the cap is not used");
    assert_eq!(capped.rejected, 3);
    // Nor do its blocks come from the range: the cap and its tables are all that is held for it.
    assert!(capped.unplanned > steps.unplanned);
    assert_eq!(settings.apply(), Err(StepsInUse));
}
