//! Shortens failing programs, so that they are easier to read.

use crate::programs::Program;

/// Maximum number of runs for one program.
const TRIES: usize = 600;

/// Removes acts, many at once and then one by one, as long as the rest still fails.
pub(crate) fn shrink(program: &Program, fails: impl Fn(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut tries = 0;
    let mut piece = best.acts.len().div_ceil(2);
    while piece > 0 {
        let (mut from, mut shorter) = (0, false);
        while from < best.acts.len() && tries < TRIES {
            let mut part = best.clone();
            part.acts.drain(from..(from + piece).min(best.acts.len()));
            tries += 1;
            if fails(&part) {
                (best, shorter) = (part, true);
            } else {
                from += piece;
            }
        }
        if tries >= TRIES || (piece == 1 && !shorter) {
            break;
        }
        piece = if piece == 1 { 1 } else { piece.div_ceil(2) };
    }
    best
}
