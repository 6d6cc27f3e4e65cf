//! Saved and loaded plans.

use larder_core::steps::{SavedPlansError, StepConfig};
use larder_model::StepSizes;

use crate::steps::world::{GRANULE, KIB, MIB, PLENTY, World};

const PROGRAM: u64 = 42;

fn saved(world: &World) -> Vec<u8> {
    let mut plans = Vec::new();
    world
        .steps
        .save(GRANULE, PROGRAM, |bytes| plans.extend_from_slice(bytes));
    plans
}

fn learned() -> World {
    let mut world = World::new();
    for _ in 0..2 {
        world.step(&[100, 8, 100, -1, -3, 200, -2, -4]);
        world.step(&[64, 32, -1, 16, -2, -3]);
        let (left, _) = world.step(&[77, 99, -1]);
        left.into_iter().for_each(|id| world.free(id));
    }
    world
}

#[test]
fn a_second_process_is_served_from_the_first_step_on() {
    let first = learned();
    let mut second = World::new();
    second.steps.load(GRANULE, PROGRAM, &saved(&first)).unwrap();
    second.step(&[100, 8, 100, -1, -3, 200, -2, -4]);
    second.step(&[64, 32, -1, 16, -2, -3]);
    let stats = second.stats();
    assert_eq!((stats.known_steps, stats.hits, stats.misses), (2, 7, 0));
    assert_eq!(stats.layouts, 0, "the places hold as they were saved");
}

#[test]
fn what_was_loaded_is_saved_alike() {
    let plans = saved(&learned());
    let mut second = World::new();
    second.steps.load(GRANULE, PROGRAM, &plans).unwrap();
    assert_eq!(saved(&second), plans);
}

#[test]
fn nothing_learned_is_a_file_too() {
    let plans = saved(&World::new());
    World::new().steps.load(GRANULE, PROGRAM, &plans).unwrap();
}

#[test]
fn every_changed_byte_and_every_cut_is_noticed_and_changes_nothing() {
    let plans = saved(&learned());
    let mut world = World::new();
    for at in 0..plans.len() {
        let mut damaged = plans.clone();
        damaged[at] ^= 0x10;
        assert!(
            world.steps.load(GRANULE, PROGRAM, &damaged).is_err(),
            "byte {at}"
        );
        assert!(
            world.steps.load(GRANULE, PROGRAM, &plans[..at]).is_err(),
            "cut at {at}"
        );
    }
    world.steps.load(GRANULE, PROGRAM, &plans).unwrap();
}

#[test]
fn each_refusal_says_why() {
    let plans = saved(&learned());
    let load = |granule, program, plans: &[u8]| World::new().steps.load(granule, program, plans);
    assert_eq!(
        load(GRANULE, PROGRAM, b"not plans at all"),
        Err(SavedPlansError::Foreign)
    );
    assert_eq!(load(GRANULE, PROGRAM, b""), Err(SavedPlansError::Foreign));
    assert_eq!(
        load(GRANULE, PROGRAM + 1, &plans),
        Err(SavedPlansError::Program)
    );
    let granule = SavedPlansError::Granule {
        found_bytes: GRANULE as u32,
        wanted_bytes: 2 * GRANULE,
    };
    assert_eq!(load(2 * GRANULE, PROGRAM, &plans), Err(granule));
    let mut later = plans.clone();
    later[8] = 99;
    let version = SavedPlansError::Version { found: 99 };
    assert_eq!(load(GRANULE, PROGRAM, &later), Err(version));
    assert_eq!(
        load(GRANULE, PROGRAM, &plans[..plans.len() - 1]),
        Err(SavedPlansError::Damaged)
    );
    let short = StepSizes {
        shapes: 2,
        ..PLENTY
    };
    let mut small = World::with(StepConfig::new(), short);
    let too_large = small.steps.load(GRANULE, PROGRAM, &plans);
    assert!(
        matches!(too_large, Err(SavedPlansError::TooLarge { shapes: 3, .. })),
        "{too_large:?}"
    );
    let mut used = learned();
    assert_eq!(
        used.steps.load(GRANULE, PROGRAM, &plans),
        Err(SavedPlansError::InUse)
    );
    for error in [
        SavedPlansError::Foreign,
        SavedPlansError::Program,
        granule,
        version,
        SavedPlansError::Damaged,
    ] {
        assert!(error.to_string().contains(':'), "says what to do: {error}");
    }
}

#[test]
fn a_plan_that_only_begins_alike_costs_little() {
    let mut first = World::paged();
    // A step that begins small and then needs 200 MiB.
    let mut large = vec![64, 32];
    for at in 0..50 {
        large.push(4096 + at);
    }
    large.extend((1..=52).map(|at: i64| -at));
    first.step(&large);
    first.step(&large);
    assert!(first.held() >= 200 * MIB);
    let mut second = World::paged();
    second.steps.load(GRANULE, PROGRAM, &saved(&first)).unwrap();
    second.step(&[64, 32, 8, -1, -2, -3]);
    // An unverified shape at first gets memory for sixteen allocations only.
    assert!(second.held() <= 70 * MIB, "{}", second.held() / KIB);
    let mut third = World::paged();
    third.steps.load(GRANULE, PROGRAM, &saved(&first)).unwrap();
    for world in [&mut second, &mut third] {
        world.step(&large);
        let stats = world.stats();
        assert_eq!((stats.misses, stats.rejected), (0, 0));
        assert!(stats.hits >= 52, "{stats:?}");
    }
}

/// Returns plans with the checksum that matches their contents.
fn summed(mut plans: Vec<u8>) -> Vec<u8> {
    let body = plans.len() - 8;
    let sum = plans[..body]
        .iter()
        .fold(0xCBF2_9CE4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
        });
    plans[body..].copy_from_slice(&sum.to_le_bytes());
    plans
}

/// Plays two steps whose blocks are live together in several ways. Some blocks are aligned, and the second step frees
/// two of the first.
fn play(world: &mut World) {
    world.begin_keyed(1);
    let a = world.alloc(100 * KIB);
    let b = world.alloc_aligned(8 * KIB, 4 * KIB);
    world.free(a);
    let c = world.alloc_aligned(70 * KIB, 64 * KIB);
    let d = world.alloc(200 * KIB);
    world.free(b);
    let e = world.alloc(50 * KIB);
    world.free(d);
    world.begin_keyed(1);
    let f = world.alloc(64 * KIB);
    world.free(c);
    let g = world.alloc(32 * KIB);
    for id in [e, f, g] {
        world.free(id);
    }
    world.end();
}

#[test]
fn a_forged_file_costs_no_block_its_place() {
    const HOSTILE: [u32; 7] = [0, 1, 3, 255, 1 << 31, u32::MAX - 1, u32::MAX];
    let mut first = World::new();
    for _ in 0..4 {
        play(&mut first);
    }
    let plans = saved(&first);
    assert_eq!(summed(plans.clone()), plans, "our sum is the file's");
    let words = plans.len() / 4 - 2;
    let mut loaded = 0;
    for word in 2..words {
        for (number, hostile) in HOSTILE.into_iter().enumerate() {
            let mut forged = plans.clone();
            forged[word * 4..][..4].copy_from_slice(&hostile.to_le_bytes());
            // Some files get a second forged word.
            let other = 8 + (word * 31 + number * 17) % (words - 8);
            if number % 3 == 0 {
                forged[other * 4..][..4].copy_from_slice(&HOSTILE[word % 7].to_le_bytes());
            }
            let mut world = if word % 8 == 0 {
                World::paged()
            } else {
                World::new()
            };
            if world.steps.load(GRANULE, PROGRAM, &summed(forged)).is_err() {
                continue;
            }
            loaded += 1;
            for _ in 0..2 {
                play(&mut world);
                world.steps.planned_bytes(larder_core::Granule::DEFAULT);
            }
            let again = saved(&world);
            World::new().steps.load(GRANULE, PROGRAM, &again).unwrap();
        }
    }
    assert!(loaded > 300, "{loaded}");
}

#[test]
fn steps_before_a_load_are_not_taken_for_those_after() {
    let lent = StepSizes { asked: 4, ..PLENTY };
    let mut world = World::with(StepConfig::new(), lent);
    let mut old = Vec::new();
    for _ in 0..4 {
        // The step is too long to be learned. Its first block stays.
        old = world.step(&[10, 1, 1, 1, 1, -2, -3, -4, -5]).0;
    }
    let plans = saved(&learned());
    world.steps.load(GRANULE, PROGRAM, &plans).unwrap();
    world.begin();
    let first = world.alloc(10 * KIB);
    world.free(old[0]);
    let second = world.alloc(10 * KIB);
    world.free(second);
    world.end();
    world.free(first);
    let before = world.stats();
    world.step(&[10, 10, -2]);
    let stats = world.stats();
    assert_eq!(stats.known_steps - before.known_steps, 1);
    assert_eq!((stats.hits - before.hits, stats.misses), (2, 0));
}

#[test]
fn files_that_contradict_themselves_are_damaged() {
    let plans = saved(&learned());
    let word = |at: usize| u32::from_le_bytes(plans[at..][..4].try_into().unwrap());
    let (shapes, header, shape) = (3, 32, 52);
    assert_eq!(word(16), shapes);
    let (len, inherited, from, next) = (header, header + 4, header + 8, header + 20);
    let forged = [
        (len, word(len) - 1),
        (len, word(len) + 1),
        (len, u32::MAX),
        (inherited, u32::MAX),
        (inherited, u32::MAX - word(len) + 1),
        (from, word(len) + 1),
        (next, shapes + 1),
        (next, 1 << 16),
        (next + shape, u32::MAX),
    ];
    for (at, number) in forged {
        let mut plans = plans.clone();
        plans[at..][..4].copy_from_slice(&number.to_le_bytes());
        let mut world = World::new();
        let loaded = world.steps.load(GRANULE, PROGRAM, &summed(plans));
        assert_eq!(loaded, Err(SavedPlansError::Damaged), "{number} at {at}");
        assert_eq!(saved(&world), saved(&World::new()), "nothing has changed");
    }
    // An empty shape, whose entries belong to another shape.
    let mut plans = plans.clone();
    let other = header + shape;
    let sum = word(len) + word(inherited) + word(other);
    for (at, number) in [(len, 0), (inherited, 0), (from, 0), (other, sum)] {
        plans[at..][..4].copy_from_slice(&u32::to_le_bytes(number));
    }
    let loaded = World::new().steps.load(GRANULE, PROGRAM, &summed(plans));
    assert_eq!(loaded, Err(SavedPlansError::Damaged));
}

#[test]
fn a_file_knows_the_most_that_was_live_in_any_step() {
    let step = [100, 8, 100, -1, -3, 200, -2, -4];
    let mut first = World::new();
    let beside = first.alloc(MIB);
    first.step(&step);
    first.free(beside);
    first.step(&step);
    let mut second = World::new();
    second.steps.load(GRANULE, PROGRAM, &saved(&first)).unwrap();
    second.alloc(MIB);
    second.step(&step);
    let stats = second.stats();
    assert_eq!((stats.hits, stats.rejected), (4, 0));
}

#[test]
fn a_layout_above_what_is_held_and_what_was_live_is_not_used() {
    let mut first = World::new();
    first.step(&[1500, -1]);
    let mut second = World::new();
    second.steps.load(GRANULE, PROGRAM, &saved(&first)).unwrap();
    // Two holes of a mebibyte, and no held memory after the last block.
    let blocks = [0; 4].map(|_| second.alloc(MIB));
    second.free(blocks[0]);
    second.free(blocks[2]);
    second.step(&[1500, -1]);
    let stats = second.stats();
    assert_eq!((stats.hits, stats.rejected), (0, 1));
}
