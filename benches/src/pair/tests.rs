//! The checks must find each defect, so every contender here is broken on purpose.

use std::ops::Range;

use super::*;

const LIVE: usize = 100;
const SEED: u64 = 7;

fn script() -> PairScript {
    PairScript::try_new(LIVE, SEED).expect("within the range")
}

/// Runs some pairs and the final checks.
fn churn(contender: impl PairContender) -> Result<(), PairFault> {
    let script = script();
    let result = Churn::try_new("c", contender, &script).and_then(|churn| {
        let mut churn = Box::new(churn);
        churn.run(5_000)?;
        churn.finish()
    });
    result.map_err(|failure| failure.fault)
}

/// [`Bump`] with a defect.
#[derive(Default)]
struct Broken {
    inner: Bump,
    /// The number of bytes by which every address is shifted down.
    shift: u64,
    /// The end of the pool.
    end: Option<u64>,
    /// Whether every address is divided, so that blocks overlap.
    squeeze: bool,
    /// The free to refuse, counted from 0.
    refuse_at: Option<u64>,
    frees: u64,
    leaks: bool,
}

impl PairContender for Broken {
    type Block = <Bump as PairContender>::Block;

    fn alloc(&mut self, bytes: u32) -> Option<Self::Block> {
        self.inner.alloc(bytes)
    }

    fn free(&mut self, block: Self::Block) -> Option<()> {
        self.frees += 1;
        if self.refuse_at == Some(self.frees - 1) {
            return None;
        }
        self.inner.free(block)
    }

    fn address(&self, block: &Self::Block) -> u64 {
        let address = self.inner.address(block);
        let squeezed = if self.squeeze { address / 300 } else { address };
        (squeezed + 1000) - self.shift
    }

    fn pool(&self) -> Range<u64> {
        1000..self.end.unwrap_or(u64::MAX)
    }

    fn check_empty(&mut self) -> Result<(), String> {
        if self.leaks {
            return Err("leak".to_owned());
        }
        self.inner.check_empty()
    }
}

#[test]
fn every_contender_passes_the_checks() {
    let script = script();
    let mut table = Vec::new();
    let larder = LarderRegion::try_new(&script, &mut table).expect("a valid configuration");
    assert_eq!(churn(larder), Ok(()));
    let paged = LarderPages::try_new(&script, &mut table).expect("a valid configuration");
    assert_eq!(churn(paged), Ok(()));
    let offset = OffsetAllocator::try_new(&script).expect("a small pool");
    assert_eq!(churn(offset), Ok(()));
    assert_eq!(churn(Bump::default()), Ok(()));
    assert_eq!(churn(Broken::default()), Ok(()));
}

#[test]
fn blocks_over_each_other_are_found() {
    let broken = Broken {
        squeeze: true,
        ..Broken::default()
    };
    assert!(matches!(churn(broken), Err(PairFault::Overlap { .. })));
}

#[test]
fn a_block_before_or_behind_the_pool_is_found() {
    let allocations = LIVE as u64 + 5_000;
    let ending_after = |blocks| Broken {
        end: Some(1000 + u64::from(MAX_BYTES) * blocks),
        ..Broken::default()
    };
    assert_eq!(churn(ending_after(allocations)), Ok(()));
    let failed = churn(ending_after(allocations - 1));
    assert!(matches!(failed, Err(PairFault::Overlap { .. })));
    let script = script();
    let before = Broken {
        shift: 1,
        ..Broken::default()
    };
    let churn = Churn::try_new("early", before, &script).expect("the bump never refuses");
    let failure = Box::new(churn).finish().expect_err("a block starts early");
    assert_eq!(failure.fault, PairFault::BeforePool { address: 999 });
}

#[test]
fn a_refused_free_and_a_leak_are_found() {
    let refusing = Broken {
        refuse_at: Some(4_999),
        ..Broken::default()
    };
    assert_eq!(churn(refusing), Err(PairFault::FreeRefused));
    let leaking = Broken {
        leaks: true,
        ..Broken::default()
    };
    assert_eq!(churn(leaking), Err(PairFault::NotEmpty("leak".to_owned())));
}

#[test]
fn a_pool_too_small_is_a_failure_and_not_a_time() {
    struct Full;
    impl PairContender for Full {
        type Block = ();
        fn alloc(&mut self, _bytes: u32) -> Option<()> {
            None
        }
        fn free(&mut self, _block: ()) -> Option<()> {
            Some(())
        }
        fn address(&self, _block: &()) -> u64 {
            0
        }
        fn pool(&self) -> Range<u64> {
            0..0
        }
        fn check_empty(&mut self) -> Result<(), String> {
            Ok(())
        }
    }
    assert!(matches!(churn(Full), Err(PairFault::OutOfMemory { .. })));
}

#[test]
fn a_script_repeats_for_its_seed_and_differs_for_another() {
    let draw = |seed| {
        let script = PairScript::try_new(LIVE, seed).expect("within the range");
        let mut cursor = Cursor::default();
        let steps = (0..1_000).map(|_| {
            (
                script.next_bytes(&mut cursor),
                script.next_victim(&mut cursor),
            )
        });
        steps.collect::<Vec<_>>()
    };
    assert_eq!(draw(SEED), draw(SEED));
    assert_ne!(draw(SEED), draw(SEED + 1));
}

#[test]
fn sizes_are_log_uniform_and_victims_uniform() {
    let script = script();
    let mut cursor = Cursor::default();
    let (mut octaves, mut victims) = ([0u32; 8], [0u32; LIVE]);
    let (mut total, mut squares) = (0u64, 0.0);
    const DRAWS: u32 = 80_000;
    for _ in 0..DRAWS {
        let bytes = script.next_bytes(&mut cursor);
        assert!((MIN_BYTES..MAX_BYTES).contains(&bytes));
        total += u64::from(bytes);
        squares += f64::from(bytes) * f64::from(bytes);
        octaves[(bytes / MIN_BYTES).ilog2() as usize] += 1;
        victims[script.next_victim(&mut cursor)] += 1;
    }
    assert!(octaves.iter().all(|&count| count.abs_diff(10_000) < 500));
    assert!(victims.iter().all(|&count| count.abs_diff(800) < 200));
    let mean = total as f64 / f64::from(DRAWS);
    assert!((mean - 11_772.0).abs() < 200.0);
    let variance = squares / f64::from(DRAWS) - mean * mean;
    assert!((variance.sqrt() - 15_764.0).abs() < 200.0);
    // 2 * (100 * 11 772 + 5 * 10 * 15 764), within the rounding of these figures.
    assert!(script.pool_bytes().abs_diff(3_930_800) < 1_000);
}

#[test]
fn live_blocks_have_limits() {
    assert!(PairScript::try_new(*LIVE_RANGE.start(), SEED).is_some());
    assert!(PairScript::try_new(*LIVE_RANGE.start() - 1, SEED).is_none());
    assert!(PairScript::try_new(*LIVE_RANGE.end() + 1, SEED).is_none());
}
