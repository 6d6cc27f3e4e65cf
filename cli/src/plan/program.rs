//! A problem as a program: one step that allocates and frees its buffers.

use larder_trace::{Trace, TraceError, read};

use super::Problem;

/// Returns the trace of a program whose only step allocates each buffer at the tick where it begins,
/// in the order of the file, after the buffers that end there are freed. Buffers without bytes or
/// ticks are left out, and so are alignments and fixed offsets.
pub(crate) fn trace(problem: &Problem) -> Result<Trace, TraceError> {
    let mut acts: Vec<(u32, bool, usize)> = Vec::new();
    for (index, lifetime) in problem.lifetimes.iter().enumerate() {
        if lifetime.begin < lifetime.end && lifetime.bytes > 0 {
            acts.push((lifetime.begin, true, index));
            acts.push((lifetime.end, false, index));
        }
    }
    // Frees come first at each tick.
    acts.sort_unstable();
    let mut text = String::from("# alloc-trace v1\ns 0\n");
    let mut ids = vec![0; problem.lifetimes.len()];
    let mut blocks = 0;
    for (_, begins, index) in acts {
        if begins {
            ids[index] = blocks;
            blocks += 1;
            let bytes = problem.lifetimes[index].bytes;
            text.push_str(&format!("a {} {bytes}\n", ids[index]));
        } else {
            text.push_str(&format!("f {}\n", ids[index]));
        }
    }
    text.push_str("s 1\n");
    let file = format!("{}.trace", problem.name);
    read(file.as_ref(), text.as_bytes())
}
