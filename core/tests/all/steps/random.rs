//! Random programs of steps: blocks never overlap, and an exact repetition never misses.

use larder_model::Random;

use crate::steps::world::{Id, KIB, World};

/// Returns a step that frees all its blocks in random order.
fn script(rng: &mut Random) -> Vec<i64> {
    let mut script = Vec::new();
    let (mut next, mut live) = (1i64, Vec::new());
    for _ in 0..rng.below(60) + 2 {
        if rng.below(5) < 3 || live.is_empty() {
            script.push((rng.below(64) + 1) as i64);
            live.push(next);
            next += 1;
        } else {
            let index = rng.index(live.len());
            script.push(-live.swap_remove(index));
        }
    }
    script.extend(live.into_iter().map(|number| -number));
    script
}

#[test]
fn what_repeats_exactly_is_never_missed() {
    for seed in 1..=300 {
        let mut rng = Random::new(seed << 32 | 0x9E37_79B9);
        let mut world = if seed % 4 == 0 {
            World::paged()
        } else {
            World::new()
        };
        let shapes: Vec<_> = (0..rng.below(3) + 1).map(|_| script(&mut rng)).collect();
        for shape in &shapes {
            world.step(shape);
        }
        // Shapes may begin alike. One is then laid out anew in the middle of the step, which must not be a miss.
        let before = world.stats();
        for _ in 0..20 {
            let shape = &shapes[rng.index(shapes.len())];
            world.step(shape);
        }
        let stats = world.stats();
        assert_eq!(stats.misses, before.misses, "seed {seed}: {stats:?}");
        assert_eq!(stats.known_steps - before.known_steps, 20, "seed {seed}");
    }
}

#[test]
fn any_program_is_served() {
    for seed in 1..=300 {
        let mut rng = Random::new(seed << 32 | 0xD1B5_4A32);
        let mut world = if seed % 4 == 0 {
            World::paged()
        } else {
            World::new()
        };
        let mut live: Vec<Id> = Vec::new();
        for _ in 0..600 {
            match rng.below(20) {
                0 => world.begin_keyed(rng.below(3)),
                1 => world.end(),
                2..=11 => live.push(world.alloc((rng.below(40) + 1) * KIB)),
                _ if !live.is_empty() => {
                    let index = rng.index(live.len());
                    world.free(live.swap_remove(index));
                }
                _ => {}
            }
        }
        for id in live {
            world.free(id);
        }
        let stats = world.stats();
        assert!(
            stats.hits + stats.misses + stats.unplanned > 0,
            "seed {seed}"
        );
    }
}
