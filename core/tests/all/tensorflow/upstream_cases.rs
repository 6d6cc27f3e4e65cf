//! The cases of CONFORMANCE 8.9 with random sizes, and upstream's bins, which our pool reports.

use crate::common::{GIB, MIB, Pool, UNIT};
use crate::script::Player;
use larder_core::{BestFit, BinSummary, RegionConfig};
use larder_model::Random;

/// Plays rows on each allocator of a `pool` row.
fn on_both(pool: &str, play: impl Fn(&mut Player)) {
    for mut player in Player::all(pool).expect("a pool") {
        play(&mut player);
        player.end().expect("all blocks are freed");
    }
}

/// Allocates 255 blocks of the sizes in 8.9: 100 bytes to 1 MiB.
fn alloc_255(player: &mut Player, name: char, seed: u64) {
    let mut random = Random::new(seed);
    for i in 0..255 {
        let bytes = random.below(MIB).max(100);
        player.row(&format!("alloc {name}{i} {bytes}"));
    }
}

/// Allocates 255 blocks, frees every second one, and allocates 255 more.
fn half_freed(player: &mut Player, seed: u64, too_large: &str) {
    alloc_255(player, 'a', seed);
    for i in (0..255).step_by(2) {
        player.row(&format!("free a{i}"));
    }
    player.row(&format!("alloc - {too_large} -> refused"));
    alloc_255(player, 'b', seed + 1);
}

#[test]
fn s8_9_random_255_sizes_half_freed_1_gib_and_one_is_null_255_more_never_overlap() {
    for pool in ["pool both limit=1G", "pool both limit=1G at-once"] {
        on_both(pool, |player| half_freed(player, 1, "1G+1"));
    }
}

#[test]
fn s8_9_growth_with_2_gib_serves_small_and_large_until_the_limit() {
    on_both("pool both limit=2G", |player| {
        half_freed(player, 3, "2G+1");
        let grows = |i: &u64| player.try_row(&format!("alloc large{i} 300M")).is_ok();
        assert!((0..7).take_while(grows).count() > 0);
        let held = player.number("reserved");
        assert!(held <= 2 * GIB && 2 * GIB - held < 300 * MIB);
    });
}

/// Makes 200 random allocations and frees, then frees most blocks. Returns the numbers of the live ones.
fn random_heap(player: &mut Player, seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed);
    let mut live = Vec::new();
    for i in 0..200 {
        if random.below(3) > 0 {
            let log2 = 8 + random.below(16);
            let bytes = 1 + random.below(1 << log2);
            let row = format!("alloc a{i} {bytes}");
            live.extend(player.try_row(&row).is_ok().then_some(i));
        } else if !live.is_empty() {
            let which = random.index(live.len());
            player.row(&format!("free a{}", live.swap_remove(which)));
        }
    }
    let keep = random.below(1 + live.len() as u64 / 8) as usize;
    for i in live.split_off(keep) {
        player.row(&format!("free a{i}"));
    }
    live
}

#[test]
fn am_4_stable_is_what_shrinking_to_0_leaves_for_every_random_heap() {
    for seed in 0..40 {
        println!("seed {seed}");
        on_both("pool both limit=256M", |player| {
            let live = random_heap(player, seed);
            let stable = player.number("stable");
            player.row("limit 0");
            assert_eq!(player.number("reserved"), stable);
            for i in live {
                player.row(&format!("free a{i}"));
            }
            player.row("limit 0");
            player.row("is reserved=0 out=0");
        });
    }
}

fn bins(pool: &Pool) -> [BinSummary; BinSummary::COUNT] {
    pool.shared.with(|pool| pool.bin_summaries())
}

#[test]
fn s8_9_bin_debug_pairs_of_doubling_sizes_stand_in_their_bins_and_the_rest_in_the_last() {
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(GIB, GIB)]);
    let mut blocks = Vec::new();
    for i in 0..5 {
        blocks.push(pool.alloc(256 << i));
        blocks.push(pool.alloc((256 << i) - 3));
        let bins = bins(&pool);
        for (b, bin) in bins.iter().enumerate() {
            let counts = (bin.used_chunks, bin.free_chunks);
            let expected = (if b <= i { 2 } else { 0 }, u32::from(b == 20));
            assert_eq!(counts, expected, "bin {b} after {i}");
        }
        assert_eq!(bins[i].used_bytes, 2 * (256 << i));
        assert_eq!(bins[i].requested_bytes, 2 * (256 << i) - 3);
        assert_eq!(bins[20].free_bytes, GIB - 2 * (256 * ((2 << i) - 1)));
    }
    pool.free_all(blocks);
    for (b, bin) in bins(&pool).iter().enumerate() {
        let expected = (0, u32::from(b == 20), if b == 20 { GIB } else { 0 });
        let found = (bin.used_chunks, bin.free_chunks, bin.free_bytes);
        assert_eq!(found, expected, "bin {b}");
    }
}

#[test]
fn s8_1_a_bin_holds_sizes_from_256_shifted_by_its_number_to_below_the_next() {
    // At each boundary by the formula of 8.1: the first size of a bin, and one granule less. The last bin has no end.
    let firsts = (1..21).flat_map(|b| [(256u64 << b, b), ((256 << b) - 256, b - 1)]);
    for (bytes, bin) in firsts.chain([(8 * GIB, 20)]) {
        let pool = Pool::with_regions(RegionConfig::fixed(), &[(UNIT, bytes)]);
        let at = bins(&pool).iter().position(|bin| bin.free_chunks == 1);
        assert_eq!(at, Some(bin), "{bytes} bytes");
    }
}
