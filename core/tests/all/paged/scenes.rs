//! Scenes with which several tests begin, and the effects that each of their plans must have.

use super::bench::{Bench, PAGE, config, pages};
use larder_core::pages::Backing;
use larder_core::{Block, Request};

/// Two layouts that share their memory: three holes, and six pages at the end of the range. It is made of handles of 3,
/// 2 and 1 pages, in this order in both.
pub(crate) struct Swing {
    pub(crate) bench: Bench,
    /// One page, in a hole of its own if it is freed.
    pub(crate) spare: Option<Block>,
    /// Everything else that is live.
    pub(crate) live: Vec<Block>,
}

/// The first pages of the holes, and of the other layout.
pub(crate) const THREE: u64 = 48;
pub(crate) const TWO: u64 = 52;
pub(crate) const ONE: u64 = 55;
pub(crate) const SIX: u64 = 59;

/// Returns a bench whose memory is in the second layout, idle.
pub(crate) fn swing() -> Swing {
    let mut bench = Bench::new(config(256, Backing::Billed));
    let [ballast, three, a, two, b, one, c, spare, last] =
        bench.pieces([48, 3, 1, 2, 1, 1, 1, 1, 1]);
    [three, two, one]
        .into_iter()
        .for_each(|block| bench.free(block));
    let [six, behind] = bench.blocks([6, 4]);
    bench.free(six);
    Swing {
        bench,
        spare: Some(spare),
        live: vec![ballast, a, b, c, last, behind],
    }
}

/// An allocator, a request that needs a plan, and what stays live.
pub(crate) type Scene = (Bench, Request, Vec<Block>);

/// Creates three pages.
pub(crate) fn creating() -> Scene {
    (Bench::new(config(64, Backing::Billed)), pages(3), vec![])
}

/// Moves two pages from each of two holes, and creates one.
pub(crate) fn moving() -> Scene {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, b, c, d] = bench.blocks([2, 1, 2, 1]);
    bench.free(a);
    bench.free(c);
    (bench, pages(5), vec![b, d])
}

/// Reuses four pages, at both ends; unmaps a place between them whose memory is in use, moves one page there, and
/// creates one.
pub(crate) fn waking() -> Scene {
    let Swing {
        mut bench,
        mut spare,
        mut live,
    } = swing();
    let [three, two, one] = bench.blocks([3, 2, 1]);
    [three, one]
        .into_iter()
        .chain(spare.take())
        .for_each(|block| bench.free(block));
    live.push(two);
    (bench, pages(6), live)
}

/// Unmaps what is cached in the only hole that is long enough, and creates there.
pub(crate) fn clearing() -> Scene {
    let mut bench = Bench::new(config(12, Backing::Billed));
    let [a, b, c, d] = bench.blocks([2, 1, 2, 1]);
    bench.free(a);
    bench.free(c);
    let e = bench.alloc(&pages(4));
    bench.free(b);
    (bench, pages(4), vec![d, e])
}

/// Releases an idle page, and creates one in its stead.
pub(crate) fn releasing() -> Scene {
    let mut config = config(64, Backing::InPlace);
    config.limit_bytes = 5 * PAGE;
    let mut bench = Bench::new(config);
    let [a, b, c] = bench.blocks([2, 1, 2]);
    bench.free(a);
    bench.free(c);
    (bench, pages(3), vec![b])
}

pub(crate) const SCENES: [fn() -> Scene; 5] = [creating, moving, waking, clearing, releasing];
