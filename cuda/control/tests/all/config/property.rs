//! What holds for any bytes as a control file. Used by a seeded test and by the fuzz target `config`.

use larder_control::{BusId, ControlFile, ControlState, ProblemKind};

/// Panics if something does not hold.
pub(crate) fn any_bytes(bytes: &[u8]) {
    let known: BusId = "00:1e.0".parse().expect("a bus id");
    let mut before = ControlState::new();
    let mut first = ControlFile::default();
    first.limit(known, 4711);
    first.perf_control = Some(37);
    let _ = before.apply(&first);

    let parsed = match ControlFile::parse(bytes) {
        Ok(parsed) => parsed,
        // No values at all: there is nothing that could be applied.
        Err(_) => return,
    };
    assert!(
        serde_json::from_slice::<serde_json::Value>(bytes).is_ok_and(|value| value.is_object()),
        "values were taken from what is not an object"
    );
    let mut state = before.clone();
    let changes = state.apply(&parsed.file);
    judge_problems(&parsed.problems, &parsed.file, &before, &state);
    for (gpu, bytes) in &changes.limits {
        assert_eq!(state.limit_bytes(*gpu), Some(*bytes));
    }
    assert!(state.limit_bytes(known).is_some(), "a limit was removed");
    assert!((0..=100).contains(&state.perf_control()));
    assert!(
        state.clone().apply(&parsed.file).is_empty(),
        "applied twice is applied once"
    );

    let text = parsed.file.to_text();
    if text.len() > ControlFile::MAX_BYTES {
        return;
    }
    let again = ControlFile::parse(&text).expect("what was written can be read");
    assert_eq!(again.file, parsed.file, "{text}");
    assert!(
        again
            .problems
            .iter()
            .all(|problem| problem.what == ProblemKind::NewerVersion),
        "{:?}",
        again.problems
    );
}

/// What has a problem left the old value in force.
fn judge_problems(
    problems: &[larder_control::Problem],
    file: &ControlFile,
    before: &ControlState,
    after: &ControlState,
) {
    let same_gpu = problems
        .iter()
        .any(|problem| problem.what == ProblemKind::SameGpu);
    for problem in problems {
        if problem.path == "perfControl" {
            assert_eq!(file.perf_control, None);
            assert_eq!(after.perf_control(), before.perf_control());
        }
        let limit = problem
            .path
            .strip_prefix("gpuConfigInfo.")
            .and_then(|path| path.strip_suffix(".maxDeviceMem"));
        // Of two spellings one may be good. What names no GPU may end like a limit, too.
        if let Some(Ok(gpu)) = limit.map(str::parse::<BusId>)
            && !same_gpu
        {
            assert_eq!(after.limit_bytes(gpu), before.limit_bytes(gpu), "{problem}");
        }
    }
}
