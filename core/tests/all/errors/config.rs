//! `ConfigError`: the last valid and the first invalid value of each setting.

use crate::common::{Pool, assert_disjoint, table};
use larder_core::{Block, ConfigError, Growth, RegionConfig, RegionPool};

fn config_error(config: RegionConfig) -> Option<ConfigError> {
    RegionPool::new(config, table(4)).err()
}

#[test]
fn each_bad_setting_is_refused_and_its_limit_is_not() {
    let good = RegionConfig::fixed();
    for (granule_bytes, bad) in [
        (0, true),
        (1, false),
        (3, true),
        (255, true),
        (1 << 30, false),
        (1 << 31, true),
        (u64::MAX, true),
    ] {
        let config = RegionConfig {
            granule_bytes,
            ..good
        };
        assert_eq!(
            config_error(config),
            bad.then_some(ConfigError::Granule),
            "{granule_bytes}"
        );
    }
    let ranged = |unit_bytes| Growth::Range {
        unit_bytes,
        ahead_divisor: None,
    };
    for (growth, bad) in [
        (ranged(0), true),
        (ranged(255), true),
        (ranged(257), true),
        (ranged(256), false),
        (ranged(768), false),
    ] {
        let config = RegionConfig { growth, ..good };
        assert_eq!(
            config_error(config),
            bad.then_some(ConfigError::GrowthUnit),
            "{growth:?}"
        );
    }
    for (records, bad) in [(0, true), (1, true), (2, false)] {
        let result = RegionPool::new(good, table(records)).err();
        assert_eq!(result, bad.then_some(ConfigError::Table), "{records}");
    }
}

#[test]
fn granules_other_than_256_work_from_one_byte_to_1_gib() {
    for granule_bytes in [1, 16, 4096, 1 << 30] {
        let config = RegionConfig {
            granule_bytes,
            ..RegionConfig::fixed()
        };
        let mut pool = Pool::new(config);
        pool.add_region(granule_bytes * 8, granule_bytes * 64);
        let blocks = [1, granule_bytes, granule_bytes + 1].map(|bytes| pool.alloc(bytes));
        let sizes = blocks.each_ref().map(Block::bytes);
        assert_eq!(sizes, [1, 1, 2].map(|n| n * granule_bytes));
        assert_disjoint(&blocks);
        pool.free_all(blocks);
        assert_eq!(
            pool.free_chunks(),
            [(granule_bytes * 8, granule_bytes * 64)]
        );
    }
}
