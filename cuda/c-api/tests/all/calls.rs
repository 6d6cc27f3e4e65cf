//! Streams, threads, captures and mistakes of callers: `tests/programs/calls.c`.

use crate::common::{compiled, on_stand_in, words};

#[test]
fn streams_threads_captures_and_mistakes_of_c() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path(), "calls.c") else {
        return;
    };
    // With a seed, queued work stays queued until something waits for it.
    for seed in [None, Some("7")] {
        let mut command = on_stand_in(&program);
        if let Some(seed) = seed {
            command.env("LARDER_STAND_IN_SEED", seed);
        }
        let output = command.env("LARDER_CUDA_SAY", "1").output().unwrap();
        assert!(output.status.success(), "{seed:?}: {}", words(&output));
        // Only the first refusal of each kind is reported.
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches("is not freed").count(), 1, "{said}");
        assert_eq!(said.matches("larder_cuda: ").count(), 4, "{said}");
    }
}
