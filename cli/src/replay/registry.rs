//! The contenders that `larder replay` knows, with one entry for each.

use super::ContenderSpec;
use crate::{ours, paged, peers, planned, prmalloc};

/// PyTorch's allocator with the settings of `--pytorch`.
pub(crate) const PYTORCH_SET: ContenderSpec = ContenderSpec {
    name: "pytorch-set",
    about: "PyTorch's caching allocator with the settings of --pytorch",
    build: peers::configured,
};

/// The contenders replayed by default: the most used ones, and Larder's.
pub(crate) const SHOWN: [&str; 4] = ["pytorch", "pytorch-expandable", "larder", "larder-planned"];

/// The contenders that differ from another one only in steps, which they plan.
pub(crate) const OF_STEPS: [&str; 3] = [
    "larder-planned",
    "larder-planned-no-moves",
    "device-planned",
];

/// Every contender that needs no option of its own, in the order of the table.
pub(crate) const CONTENDERS: &[ContenderSpec] = &[
    ContenderSpec {
        name: "pytorch",
        about: "PyTorch's caching allocator with its defaults: segments of 2 MiB, of 20 MiB, or for one large block",
        build: peers::pytorch,
    },
    ContenderSpec {
        name: "pytorch-expandable",
        about: "PyTorch's with expandable_segments:True: pages of 2 and 20 MiB mapped where memory is needed",
        build: peers::pytorch_expandable,
    },
    ContenderSpec {
        name: "larder",
        about: "ours, as DeviceAllocator is by default: pages move where memory is short, and early while that takes few calls",
        build: paged::larder,
    },
    ContenderSpec {
        name: "larder-no-moves",
        about: "the same without moves: one range growing by what is missing in 2 MiB, exact splits, tail last",
        build: ours::no_moves,
    },
    ContenderSpec {
        name: "larder-budget",
        about: "larder, moving pages only once all of the device is held",
        build: paged::larder_budget,
    },
    ContenderSpec {
        name: "larder-planned",
        about: "larder that knows the steps of the whole trace from a first pass, which is not shown, and serves them from plans",
        build: paged::planned,
    },
    ContenderSpec {
        name: "larder-planned-no-moves",
        about: "the same over larder-no-moves",
        build: planned::no_moves,
    },
    ContenderSpec {
        name: "prmalloc",
        about: "ours: bins planned from steps 1 and 2, and from later ones when they change",
        build: prmalloc::prmalloc,
    },
    ContenderSpec {
        name: "prmalloc-upstream",
        about: "DeepRec's GPU form: planned once, touching lives apart",
        build: prmalloc::prmalloc_upstream,
    },
    ContenderSpec {
        name: "xla",
        about: "XLA's BFC: doubling regions from 2 MiB, never merged; keeps up to twice the request unsplit",
        build: peers::xla,
    },
    ContenderSpec {
        name: "xla-one-region",
        about: "the same in one region; reserved is the highest address ever used",
        build: peers::xla_one_region,
    },
    ContenderSpec {
        name: "always-split",
        about: "yardstick: best fit by size and address in one region, always split",
        build: peers::always_split,
    },
    ContenderSpec {
        name: "power-of-two",
        about: "sizes rounded up to a power of two, cached by exact size, never split",
        build: peers::power_of_two,
    },
];
