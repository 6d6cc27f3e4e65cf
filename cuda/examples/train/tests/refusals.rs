//! Refuses each driver call of a training run, one call in each run: the run ends with an error or
//! with the same losses, and leaves nothing behind.

use larder_cuda::driver::Rule;
use larder_cuda::driver::abi::Code;

use super::common::{alone, assert_clean};
use super::gpu;
use crate::train::{TrainSettings, train};

/// The fewest calls that show everything: a first step, a planned one, and both batches used again.
const SETTINGS: TrainSettings = TrainSettings {
    seed: 5,
    hidden: 3,
    batch: 4,
    steps: 5,
    rate: 0.1,
};

#[test]
fn a_refused_call_ends_in_an_error_or_in_the_same_losses() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let gpu = gpu();
    let expected = train(&gpu, &SETTINGS, || {}).unwrap().losses;
    let (mut skip, mut errors) = (0, 0);
    for code in [Code::NOT_PERMITTED, Code::OUT_OF_MEMORY]
        .into_iter()
        .cycle()
    {
        // All memory is returned to the driver, so that the run has to request it.
        let held = gpu.memory.release(u64::MAX).later_bytes + gpu.memory.stats().reserved_bytes;
        gpu.pinned.release();
        assert_eq!(
            (held, gpu.pinned.stats().reserved_bytes),
            (0, 0),
            "call {skip}"
        );

        control.schedule_deferred(skip);
        let rule = Rule::any().after(skip).with(code);
        control.reset_calls();
        control.fail(rule).unwrap();
        let answer = train(&gpu, &SETTINGS, || {});
        let calls = control.calls(None);
        control.clear_failures();
        let heard = gpu.compute.context().check_err().is_err();
        match answer {
            Ok(report) if !heard => {
                assert_eq!(report.losses, expected, "call {skip} refused");
                assert_eq!(control.findings(), Vec::<String>::new(), "call {skip}");
            }
            _ => errors += 1,
        }
        control.clear_findings();
        // Work in flight used memory until now; from here on, events are reached as soon as they are
        // recorded.
        control.schedule_eagerly();
        gpu.memory.context().synchronize().unwrap();
        if calls <= skip {
            break;
        }
        skip += 1;
    }
    // A refused launch or copy cannot be made up for.
    assert!(
        errors > 15 * SETTINGS.steps && (errors as u64) < skip,
        "{errors} of {skip}"
    );
    drop(gpu);
    assert_clean(control);
}
