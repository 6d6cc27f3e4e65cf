//! Properties of any bytes read as a control file, for a seeded test and the fuzz target `config`.

use larder_control::{BusId, ControlFile, Problem, ProblemKind};

/// Panics if a property is violated.
pub(crate) fn any_bytes(bytes: &[u8]) {
    let parsed = match ControlFile::parse(bytes) {
        Ok(parsed) => parsed,
        // Nothing was read, so there is nothing to apply.
        Err(_) => return,
    };
    assert!(
        serde_json::from_slice::<serde_json::Value>(bytes).is_ok_and(|value| value.is_object()),
        "values were taken from what is not an object"
    );
    judge_problems(&parsed.problems, &parsed.file);
    let perf = parsed.file.perf_control;
    assert!(perf.is_none_or(|perf| (0..=100).contains(&perf)));

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

/// Checks that a value with a problem is absent, so that the old value stays in force.
fn judge_problems(problems: &[Problem], file: &ControlFile) {
    let same_gpu = problems
        .iter()
        .any(|problem| problem.what == ProblemKind::SameGpu);
    for problem in problems {
        if problem.path == "perfControl" {
            assert_eq!(file.perf_control, None);
        }
        // If a GPU has two spellings, one limit may be good. The path of a key that names no GPU may end like that of a
        // limit.
        if same_gpu || problem.what == ProblemKind::NotABusId {
            continue;
        }
        let limit = problem
            .path
            .strip_prefix("gpuConfigInfo.")
            .and_then(|path| path.strip_suffix(".maxDeviceMem"));
        if let Some(Ok(gpu)) = limit.map(str::parse::<BusId>) {
            let limit = file.gpus.get(&gpu).and_then(|gpu| gpu.max_device_mem);
            assert_eq!(limit, None, "{problem}");
        }
    }
}
