//! Shortens a program that fails, for a reader.

use crate::programs::Program;

/// Most runs that are spent on it.
const TRIES: usize = 600;

/// Leaves acts out, many at once and then one by one, as long as what is left still fails.
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
