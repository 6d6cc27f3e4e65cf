//! The published planning sets, if `LARDER_PLANNING_DIR` names a folder with them: each must be
//! packed down to the height in its name.

use std::path::PathBuf;
use std::time::Duration;

use crate::plan::{self, Effort};

/// Maximum number of search steps, many times as many as any known set needs.
const STEPS: u64 = 20_000_000;
const HEIGHT_BYTES: u64 = 1_048_576;

#[test]
fn each_set_reaches_its_height() {
    let Some(folder) = std::env::var_os("LARDER_PLANNING_DIR").map(PathBuf::from) else {
        println!("skipped: LARDER_PLANNING_DIR names no folder of planning sets");
        return;
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("LARDER_PLANNING_DIR is a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "csv"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no CSV file in {}", folder.display());
    let effort = Effort {
        time: Duration::MAX,
        steps: STEPS,
        stop_at: HEIGHT_BYTES,
    };
    for file in files {
        for problem in plan::load(&file).expect("a good file").0 {
            let row = plan::solve(&problem, &effort).expect("a packing");
            assert!(row.valid && row.height <= HEIGHT_BYTES, "{row:?}");
        }
    }
}
