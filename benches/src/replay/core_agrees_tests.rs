//! The core under TensorFlow's policies against the independently written ordered-set BFC: the same
//! addresses on recorded traces, allocation by allocation.

use std::path::Path;

use crate::ours::Core;
use crate::peers;
use crate::replay::{Contender, Slot};
use larder_core::{BfcConfig, Fit, Growth, Split};
use larder_trace::{Event, Trace};

/// First address that the core's simulated device gives; the peers' give 0.
const CORE_BASE: u64 = 1 << 32;

fn trace(name: &str) -> Trace {
    let file = format!("{}/traces/{name}.trace.zst", env!("CARGO_MANIFEST_DIR"));
    Trace::load(Path::new(&file)).expect("a carried trace")
}

/// Replays both side by side; every address must be equal, up to the device's base.
fn agree(trace: &Trace, core: &mut dyn Contender, peer: &mut dyn Contender) {
    let mut slots = vec![(Slot::default(), Slot::default()); trace.allocations() as usize];
    for (number, event) in trace.events().iter().enumerate() {
        match *event {
            Event::Alloc { id, bytes } => {
                let ours = core.alloc(bytes).expect("no limit");
                let theirs = peer.alloc(bytes).expect("no limit");
                assert_eq!(
                    ours.address - CORE_BASE,
                    theirs.address,
                    "event {number} of {}",
                    trace.name()
                );
                slots[id as usize] = (ours, theirs);
            }
            Event::Free { id } => {
                core.free(slots[id as usize].0);
                peer.free(slots[id as usize].1);
            }
            Event::Step { .. } => {}
        }
    }
    assert_eq!(core.driver_allocations(), peer.driver_allocations());
}

#[test]
fn the_core_as_xla_gives_the_addresses_of_the_ordered_set_bfc() {
    for name in ["bert_infer", "gpt2s_train", "resnet50_train"] {
        let config = BfcConfig {
            growth: Growth::Doubling {
                first_bytes: 2 << 20,
            },
            collect_regions: true,
            ..BfcConfig::tensorflow(u64::MAX)
        };
        let mut core = Core::new(config);
        agree(&trace(name), &mut core, peers::xla(None).as_mut());
    }
}

#[test]
fn the_core_with_exact_fit_gives_the_addresses_of_always_split() {
    for name in ["bert_infer", "gpt2s_train", "resnet50_train"] {
        let config = BfcConfig {
            split: Split::Always,
            fit: Fit::Exact,
            wilderness_last: false,
            // One region that holds the whole device, as the peer's.
            growth: Growth::Doubling {
                first_bytes: 1 << 39,
            },
            ..BfcConfig::default()
        };
        let mut core = Core::new(config);
        agree(&trace(name), &mut core, peers::always_split(None).as_mut());
    }
}
