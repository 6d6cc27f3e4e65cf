//! Tables of fresh pages stay untouched until a block needs them: counted by the page faults of the
//! thread, which Linux tells.
#![cfg(target_os = "linux")]

use larder_core::{Addr, AddrRange, Bfc, BfcConfig, Chunk, Granule, PageIndex, Request};

/// Pages that this thread has touched first, without I/O; `None` where the system does not say.
fn faults() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    // The name, in parentheses, may contain anything.
    let (_, numbers) = stat.rsplit_once(") ")?;
    numbers.split(' ').nth(7)?.parse().ok()
}

/// Faults that `f` causes.
fn faults_of<R>(f: impl FnOnce() -> R) -> Option<(R, u64)> {
    let before = faults()?;
    let result = f();
    Some((result, faults()? - before))
}

#[test]
fn an_allocator_over_a_gibibyte_of_fresh_entries_touches_only_those_of_its_blocks() {
    // A vector of zeros is fresh pages; huge ones make 512 of a GiB.
    let mut entries = vec![0u32; 1 << 28];
    let mut table = vec![Chunk::VACANT; 64];
    let made = faults_of(|| {
        let index = PageIndex::zeroed(Addr::new(0), Granule::DEFAULT, &mut entries);
        let mut bfc = Bfc::with_index(BfcConfig::fixed(), &mut table, index).unwrap();
        bfc.add_region(AddrRange::new(Addr::new(0), 1 << 36).unwrap())
            .unwrap();
        let block = bfc.alloc(&Request::new(1000)).unwrap().block;
        assert_eq!(bfc.free_addr(block.addr()), Ok(1024));
    });
    let Some(((), touched)) = made else {
        return;
    };
    // Reading all of them does show, so that the count above means something.
    let ((), read) = faults_of(|| assert!(entries.iter().step_by(1024).all(|entry| *entry == 0)))
        .expect("counted before");
    assert!(touched < 64, "{touched} pages were touched");
    assert!(read == 0 || read > 4 * 64, "{read} pages make a GiB");
}
