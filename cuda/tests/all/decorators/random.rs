//! Random use of checked memory under deferred schedules. A plain list of the changed bytes says what each free must
//! find.

use larder_core::decorate::{CheckError, Which};
use larder_core::{Align, Block, BlockAllocator, Request};
use larder_cuda::CheckedConfig;
use larder_model::Random;

use super::Setup;
use crate::common::{alone_and_clean, fill};

const SEEDS: u64 = 12;
const STEPS: u64 = 250;

/// A block and the changes to its guards.
struct Live {
    block: Block,
    bytes: u64,
    /// Start of the front guard and end of the tail guard, as offsets from the block.
    guards: (i64, i64),
    /// The changed offsets and their new values.
    changes: Vec<(i64, u8)>,
}

impl Live {
    fn is_front(offset: i64) -> bool {
        offset < 0
    }

    /// Returns the expected finding: the lowest change, because the front guard is read first.
    fn expected(&self) -> Option<(Which, i64, u8)> {
        let (offset, value) = self.changes.iter().min_by_key(|(offset, _)| *offset)?;
        let which = if Self::is_front(*offset) {
            Which::Front
        } else {
            Which::Tail
        };
        Some((which, *offset, *value))
    }
}

fn of(find: Option<CheckError>) -> Option<(Which, i64, u8)> {
    match find {
        None => None,
        Some(CheckError::Damaged(damage)) => Some((damage.which, damage.offset, damage.found)),
        Some(other) => panic!("{other}"),
    }
}

fn run(setup: &Setup, seed: u64) {
    let mut random = Random::new(seed);
    let memory = setup.checked(CheckedConfig {
        waiting_blocks: 0,
        ..CheckedConfig::new()
    });
    let mut live: Vec<Live> = Vec::new();
    for step in 0..STEPS {
        let words = format!("seed {seed}, step {step}");
        let at = random.index(live.len().max(1));
        match random.below(6) {
            0 | 1 => {
                let align = Align::new(1 << random.below(11)).unwrap();
                let max = 1 << (1 + random.below(12));
                let bytes = 1 + random.below(max);
                let block = memory.alloc(&Request::new(bytes).aligned(align));
                let block = block.unwrap().block;
                let front = align.bytes().max(16) as i64;
                let granted = memory.granted_bytes(&block).unwrap() as i64;
                live.push(Live {
                    block,
                    bytes,
                    guards: (-front, granted - front),
                    changes: Vec::new(),
                });
            }
            2 if !live.is_empty() => {
                let own = &live[at];
                fill(&setup.stream, own.block.addr().get(), own.bytes, step as u8);
            }
            3 if !live.is_empty() => {
                let own = &mut live[at];
                let (first, end) = own.guards;
                let offset = first + random.below((end - first) as u64) as i64;
                let value = random.below(256) as u8;
                let was = if Live::is_front(offset) { 0xab } else { 0xcd };
                let inside = (0..own.bytes as i64).contains(&offset);
                let place = own.block.addr().get().wrapping_add_signed(offset);
                fill(&setup.stream, place, 1, value);
                own.changes.retain(|(other, _)| *other != offset);
                if !inside && value != was {
                    own.changes.push((offset, value));
                }
            }
            4 if !live.is_empty() => {
                let own = &live[at];
                let found = of(memory.check(&own.block).err());
                assert_eq!(found, own.expected(), "{words}");
            }
            5 if !live.is_empty() => {
                let own = live.swap_remove(at);
                let expected = own.expected();
                memory.free(own.block).unwrap();
                assert_eq!(of(memory.take_finding()), expected, "{words}");
            }
            _ => {}
        }
    }
    let damaged = live.iter().filter(|own| own.expected().is_some()).count();
    assert_eq!(memory.check_all(|_| ()), damaged as u64, "seed {seed}");
    for own in live {
        let expected = own.expected();
        memory.free(own.block).unwrap();
        assert_eq!(
            of(memory.take_finding()),
            expected,
            "seed {seed}, at the end"
        );
    }
    assert_eq!(setup.memory.stats().live_bytes, 0);
}

#[test]
fn f7_checked_memory_finds_what_a_plain_list_says() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        for seed in 0..SEEDS {
            control.schedule_deferred(seed);
            run(&setup, seed);
            control.schedule_eagerly();
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
    });
}
