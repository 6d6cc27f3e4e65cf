//! Reservations: `tests/programs/reserved.c`.

use crate::common::{compiled, on_stand_in, words};

#[test]
fn memory_comes_and_goes_behind_addresses_that_stay() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path(), "reserved.c") else {
        return;
    };
    // With a seed, queued work stays queued until something waits for it.
    for seed in [None, Some("7")] {
        let mut command = on_stand_in(&program);
        if let Some(seed) = seed {
            command.env("LARDER_STAND_IN_SEED", seed);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{seed:?}: {}", words(&output));
        // Only the refusal of a tensor's end is reported.
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches("larder_cuda: ").count(), 1, "{said}");
        assert!(said.contains("of the deleted tensor"), "{said}");
    }
}
