//! Tables that are too small, refused configurations, and the floor of the bytes that may be released.

use super::bench::{BASE, Bench, PAGE, config, pages, tables};
use super::player::Player;
use larder_core::pages::{Backing, PageConfig, PagePool};
use larder_core::{Addr, AddrRange, AllocError, ConfigError};

use crate::golden::Player as _;

#[test]
fn a_full_chunk_table_refuses_and_changes_nothing() {
    for chunks in 2..12 {
        let mut bench = Bench::with_tables(config(64, Backing::Billed), chunks, 64, 256);
        let mut live = Vec::new();
        let error = loop {
            match bench.try_alloc(&pages(2)) {
                Ok(block) => live.push(Some(block)),
                Err(error) => break error,
            }
        };
        let full = AllocError::TableFull {
            records: chunks as u32 - 1,
        };
        assert_eq!((error, live.len()), (full, chunks - 1));
        for block in live.iter_mut().step_by(2) {
            bench.free(block.take().unwrap(), None);
        }
        let picture = bench.without_unmapped_end();
        // Moving pieces of two chunks may take more records than there are.
        if let Err(error) = bench.try_alloc(&pages(4)) {
            assert_eq!((error, bench.without_unmapped_end()), (full, picture));
        }
    }
}

fn refused(config: PageConfig, places: usize, handles: usize, mappings: usize) -> ConfigError {
    let (chunks, tables) = tables(16, places, handles, mappings);
    PagePool::new(config, chunks, tables).err().unwrap()
}

#[test]
fn a_configuration_that_contradicts_itself_is_refused() {
    let good = config(8, Backing::Billed);
    for page_bytes in [0, 128, PAGE + 128, 1 << 41] {
        let config = PageConfig { page_bytes, ..good };
        assert_eq!(refused(config, 8, 8, 8), ConfigError::Page, "{page_bytes}");
    }
    for (start, bytes) in [(BASE + 256, PAGE), (BASE, PAGE + 256), (BASE, PAGE << 30)] {
        let addresses = AddrRange::new(Addr::new(start), bytes).unwrap();
        let config = PageConfig { addresses, ..good };
        assert_eq!(refused(config, 8, 8, 8), ConfigError::Addresses);
    }
    for (places, handles, mappings) in [(7, 8, 8), (8, 1, 8), (8, 8, 1), (8, 0, 8), (8, 8, 0)] {
        let error = refused(good, places, handles, mappings);
        assert_eq!(error, ConfigError::PageTables);
    }
    let (chunks, tables) = tables(16, 8, 2, 2);
    assert!(PagePool::new(good, chunks, tables).is_ok());
}

#[test]
fn am_4_stable_is_what_a_release_of_all_leaves() {
    for floor in [0, 53, 55, 57, 72] {
        for changes in [
            &[][..],
            &["pin c", "free c"],
            &["free b after 1:1"],
            &["pin c", "free c", "free b after 1:1"],
        ] {
            let mut player = Player::after(&format!("pieces floor {floor}"));
            for change in changes {
                player.play(change);
            }
            let bench = &player.bench;
            let stats = bench.paged.pool_stats();
            assert_eq!(stats.pool_bytes, bench.held() * PAGE);
            bench.paged.release(1000 * PAGE);
            let case = format!("floor {floor}, {changes:?}");
            assert_eq!(bench.held() * PAGE, stats.stable_bytes, "{case}");
            bench.check();
        }
    }
}
