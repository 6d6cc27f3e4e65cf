//! What `larder versus --list` prints.

use crate::versus::{ALLOCATORS, Allocator, WORKLOADS, Workload};

/// One line each.
pub(super) fn list() -> String {
    let mut text = String::from("workloads\n");
    for workload in WORKLOADS {
        let Workload {
            name,
            threads,
            about,
            ..
        } = workload;
        let threads = format!(
            "{threads} {}",
            if *threads == 1 { "thread" } else { "threads" }
        );
        text.push_str(&format!("  {name:16} {threads:10}  {about}\n"));
    }
    text.push_str("\nallocators\n");
    for allocator in ALLOCATORS {
        let only = match *allocator {
            Allocator { one_lock: true, .. } => "; one thread only",
            Allocator {
                steps_only: true, ..
            } => "; steps only",
            _ => "",
        };
        text.push_str(&format!(
            "  {:16} {}{only}\n",
            allocator.name, allocator.about
        ));
    }
    text
}
