//! The output of `larder versus --list`.

use crate::report::{Table, layout};
use crate::versus::{ALLOCATORS, Allocator, WORKLOADS};

pub(super) fn list() -> String {
    let mut workloads = Table::words(["workload", "threads", "about"]);
    for workload in WORKLOADS {
        let threads = workload.threads.to_string();
        workloads.row([workload.name, &threads, workload.about]);
    }
    let mut allocators = Table::words(["allocator", "about"]);
    for allocator in ALLOCATORS {
        let only = match *allocator {
            Allocator { one_lock: true, .. } => "; one thread only",
            Allocator {
                steps_only: true, ..
            } => "; steps only",
            _ => "",
        };
        let about = format!("{}{only}", allocator.about);
        allocators.row([allocator.name, &about]);
    }
    let width = layout::width();
    let text = format!("{}\n{}", workloads.text(width), allocators.text(width));
    layout::wrapped(&text, width)
}
