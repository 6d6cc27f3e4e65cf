//! Packings of lifetimes: tiny problems compared with their optimum, refused problems, the search, and the validator.

mod optimum;
mod refused;
mod search;
mod validator;

use larder_core::Align;
use larder_core::pack::Lifetime;
use larder_model::Random;

/// The bounds of a random problem.
#[derive(Clone, Copy)]
struct Kind {
    lifetimes: u64,
    ticks: u64,
    bytes: u64,
    aligned: bool,
    pinned: bool,
}

/// Returns random lifetimes, some of which are empty or have no bytes.
fn random_lifetimes(random: &mut Random, kind: Kind) -> Vec<Lifetime> {
    let count = 1 + random.below(kind.lifetimes);
    let mut lifetimes = Vec::new();
    for _ in 0..count {
        let begin = random.below(kind.ticks) as u32;
        let end = begin + random.below(kind.ticks / 2 + 1) as u32;
        let mut lifetime = Lifetime::new(begin, end, random.below(kind.bytes));
        if kind.aligned {
            lifetime.align = Align::new(1 << random.below(4)).unwrap_or(Align::ONE);
        }
        if kind.pinned && random.below(4) == 0 {
            let offset = random.below(3) * kind.bytes;
            lifetime.pinned = Some(offset.next_multiple_of(lifetime.align.bytes()));
        }
        lifetimes.push(lifetime);
    }
    lifetimes
}

#[test]
fn lifetimes_meet_where_a_tick_belongs_to_both() {
    let all = (0..5).flat_map(|begin| (begin..5).map(move |end| Lifetime::new(begin, end, 1)));
    for (one, other) in all
        .clone()
        .flat_map(|one| all.clone().map(move |other| (one, other)))
    {
        let both = (one.begin..one.end).any(|tick| (other.begin..other.end).contains(&tick));
        assert_eq!(one.meets(&other), both, "{one:?} {other:?}");
    }
}
