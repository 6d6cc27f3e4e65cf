//! Scenes that several tests begin with, and what each of their plans must do.

use super::bench::{Bench, PAGE, config, pages};
use larder_core::paged::Backing;
use larder_core::{Block, Request};

/// Two layouts that share their memory: four pages at page 36, made of pieces of 3 and 1, and six
/// at page 44, made of the same and a piece of 2 between them.
pub(crate) struct Swing {
    pub(crate) bench: Bench,
    /// At the end of the second layout's middle piece, pages 47 and 48.
    pub(crate) middle: Option<Block>,
    /// Everything else that is live.
    pub(crate) live: Vec<Block>,
}

/// The first page of either layout.
pub(crate) const FOUR: u64 = 36;
pub(crate) const SIX: u64 = 44;

/// The memory lies in the second layout, free but for the middle piece.
pub(crate) fn swing() -> Swing {
    let mut bench = Bench::new(config(256, Backing::Billed));
    // A large pool makes pieces of up to three pages.
    let [ballast, three, one, guard, two, last] = bench.blocks([36, 3, 1, 1, 2, 1]);
    [three, one, two]
        .into_iter()
        .for_each(|block| bench.free(block));
    let six = bench.alloc(&pages(6));
    bench.free(six);
    let [front, middle] = bench.blocks([3, 2]);
    bench.free(front);
    Swing {
        bench,
        middle: Some(middle),
        live: vec![ballast, guard, last],
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

/// Reuses one page at the end, moves three behind it, and creates two.
pub(crate) fn waking() -> Scene {
    let Swing {
        mut bench,
        middle,
        mut live,
    } = swing();
    let four = bench.alloc(&pages(4));
    bench.free(four);
    live.extend(middle);
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
    config.bfc.limit_bytes = 5 * PAGE;
    let mut bench = Bench::new(config);
    let [a, b, c] = bench.blocks([2, 1, 2]);
    bench.free(a);
    bench.free(c);
    (bench, pages(3), vec![b])
}

pub(crate) const SCENES: [fn() -> Scene; 5] = [creating, moving, waking, clearing, releasing];
