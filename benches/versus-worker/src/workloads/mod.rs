//! The workloads, and the list of their names.
//!
//! Each workload builds its inputs before its clock starts, frees everything before the clock stops, and draws its
//! random numbers from fixed seeds.

mod churn;
mod cliffs;
mod frames;
mod grow;
mod idle;
mod json;
mod larson;
mod maps;
mod mixed;
mod pairs;
mod phases;
mod pipe;
mod programs;
mod server;
mod server_mix;
mod steps;
mod storm;
mod syntax;
mod trees;

use crate::clock::Outcome;
use crate::scale::Scale;

/// The function of a workload.
pub type Run = fn(Scale) -> Outcome;

/// The names of the list, with their functions.
const RUNS: &[(&str, Run)] = &[
    ("pairs-1", |scale| pairs::pairs(1, scale)),
    ("pairs-64", |scale| pairs::pairs(64, scale)),
    ("pairs-4096", |scale| pairs::pairs(4096, scale)),
    ("boxes", pairs::boxes),
    ("bare-sizes", pairs::bare_sizes),
    ("bare-boxes", pairs::bare_boxes),
    ("larson-1", |scale| larson::larson(1, scale)),
    ("larson-2", |scale| larson::larson(2, scale)),
    ("larson-4", |scale| larson::larson(4, scale)),
    ("pipe-1", |scale| pipe::pipe(1, scale)),
    ("pipe-2", |scale| pipe::pipe(2, scale)),
    ("phases", phases::phases),
    ("vec", grow::vec),
    ("vecs", grow::vecs),
    ("map", maps::map),
    ("trees-1", |scale| trees::trees(1, scale)),
    ("trees-2", |scale| trees::trees(2, scale)),
    ("btree", maps::btree),
    ("json", json::json),
    ("requests-2", json::requests),
    ("large-touched", churn::large_touched),
    ("large-untouched", churn::large_untouched),
    ("steps-one", steps::one_shape),
    ("steps-three", steps::three_shapes),
    ("steps-filled", steps::filled),
    ("steps-untouched", steps::untouched),
    ("mixed", mixed::mixed),
    ("storm-turn", storm::in_turn),
    ("storm-once", storm::at_once),
    ("server-mix", server_mix::server_mix),
    ("zeroed-sparse", churn::zeroed_sparse),
    ("zeroed-full", churn::zeroed_full),
    ("syn-1", |scale| syntax::syn(1, scale)),
    ("syn-2", |scale| syntax::syn(2, scale)),
    ("markdown", programs::markdown),
    ("toml", programs::toml),
    ("regex", programs::regex),
    ("frames-one-cpu", frames::one_cpu),
    ("frames-loaded", frames::loaded),
    ("frames-fifo", frames::fifo),
    ("survivors", cliffs::survivors),
    ("long-steps", cliffs::long_steps),
    ("idle-0", |scale| idle::idle(0, scale)),
    ("idle-1", |scale| idle::idle(1, scale)),
    ("idle-5", |scale| idle::idle(5, scale)),
    ("server", server::server),
];

/// Returns the function of the workload with this name.
pub fn find(name: &str) -> Option<Run> {
    let (_, run) = RUNS.iter().find(|(known, _)| *known == name)?;
    Some(*run)
}

/// Returns the reason why the system does not allow the workload with this name to run, if there is one.
pub fn refused(name: &str) -> Option<String> {
    let (what, asked) = match name {
        "frames-one-cpu" => ("threads on one core", frames::may_share_a_core()),
        "frames-fifo" => ("SCHED_FIFO on one core", frames::may_run_first()),
        _ => return None,
    };
    let error = asked.err()?;
    Some(format!("the system refuses {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list;

    /// Returns the workloads that the system allows. Leaves out `idle-1` and `idle-5`, which only wait longer
    /// than `idle-0`, and `server`, which varies with each run.
    fn allowed() -> impl Iterator<Item = (&'static str, Run)> {
        let all = RUNS.iter().copied();
        let all = all.filter(|(name, _)| !["idle-1", "idle-5", "server"].contains(name));
        all.filter(|(name, _)| refused(name).is_none())
    }

    #[test]
    fn the_list_and_the_workloads_have_the_same_names() {
        let listed: Vec<&str> = list::WORKLOADS
            .iter()
            .map(|workload| workload.name)
            .collect();
        let known: Vec<&str> = RUNS.iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, known);
    }

    #[test]
    fn every_workload_gives_the_same_answer_twice() {
        for (name, run) in allowed() {
            let first = run(Scale::CHECK);
            let second = run(Scale::CHECK);
            assert_eq!(first.answer, second.answer, "{name}");
            assert_eq!(first.operations, second.operations, "{name}");
            assert!(first.operations > 0, "{name}");
            assert!(first.seconds > 0.0, "{name}");
        }
    }

    #[test]
    fn more_work_gives_another_answer() {
        for (name, run) in allowed() {
            let less = run(Scale::CHECK);
            let more = run(Scale::CHECK.times(10));
            assert!(more.operations > less.operations, "{name}");
            assert_ne!(more.answer, less.answer, "{name}");
        }
    }
}
