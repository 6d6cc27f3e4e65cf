//! Random operations over a device that keeps a byte-accurate picture of its pages.

use larder_core::paged::{Backing, Handle, Mapping, PageTables, PagedBfc, PagedConfig, Place};
use larder_core::{Addr, AddrRange, BfcConfig, Block, Chunk, Epoch, Lane, Request, Stamp};
use larder_model::{PageDevice, Random};

const GRANULE: u64 = 256;

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let page = GRANULE << random.below(5);
    let capacity = page * (4 + random.below(60));
    let places = (capacity / page * (2 + random.below(6))) as usize;
    let addresses = AddrRange::new(Addr::new(page * 1000), page * places as u64).unwrap();
    let backing = if random.below(2) == 0 {
        Backing::Billed
    } else {
        Backing::Budget(capacity)
    };
    let mut config = PagedConfig::new(addresses, backing);
    config.page_bytes = page;
    config.bfc = BfcConfig {
        limit_bytes: if random.below(2) == 0 {
            u64::MAX
        } else {
            capacity
        },
        ..config.bfc
    };
    config.floor_bytes = page * random.below(4);
    let mut chunks = vec![Chunk::VACANT; 24 + random.below(400) as usize];
    let mut place_table = vec![Place::EMPTY; places];
    let mut handles = vec![Handle::VACANT; 2 + random.below(2 * capacity / page) as usize];
    let mut mappings = vec![Mapping::VACANT; 2 + random.below(6 * capacity / page) as usize];
    let tables = PageTables {
        places: &mut place_table,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let mut paged = PagedBfc::new(config, &mut chunks, tables).unwrap();
    let device = PageDevice::new(page, capacity);
    let mut live: Vec<(Block, Lane, bool)> = Vec::new();
    // Of each lane the newest epoch and how many of them are completed.
    let mut lane_epochs = [(1u64, 0u64); 3];
    let (mut granted, mut failed) = (0, 0);
    let lanes = if random.below(2) == 0 { 1 } else { 3 };
    for op in 0..300 {
        match random.below(20) {
            0..=8 => {
                let most = 1 + random.below(12);
                let bytes = 1 + random.below(most * page * 2);
                let lane = Lane::new(random.below(lanes) as u8);
                let mut request = Request::new(bytes);
                request.lane = lane;
                request.may_wait = false;
                if random.below(8) == 0 {
                    request.align = larder_core::Align::new(1 << random.below(14)).unwrap();
                }
                if random.below(12) == 0 {
                    device.refuse_in(Some(random.below(6)));
                }
                match paged.alloc_over(&device, &request) {
                    Ok(grant) => {
                        device.begin_use(grant.block.range(), lane);
                        assert!(grant.block.addr().is_aligned(request.align));
                        granted += 1;
                        live.push((grant.block, lane, false));
                    }
                    Err(_) => failed += 1,
                }
                device.refuse_in(None);
            }
            9..=14 if !live.is_empty() => {
                let (block, lane, pinned) =
                    live.swap_remove(random.below(live.len() as u64) as usize);
                if pinned {
                    paged.unpin(&block).unwrap();
                }
                let (newest, completed) = &mut lane_epochs[usize::from(lane.number())];
                *newest += random.below(2);
                let stamp = Stamp {
                    lane,
                    epoch: Epoch::new(*newest),
                };
                let pending = (newest > completed).then_some(stamp);
                device.end_use(block.range(), pending);
                paged.free_after(block, stamp).unwrap();
            }
            15 => {
                let lane = random.below(lanes) as u8;
                let (newest, completed) = &mut lane_epochs[usize::from(lane)];
                *completed = (*completed + random.below(4)).min(*newest);
                let stamp = Stamp {
                    lane: Lane::new(lane),
                    epoch: Epoch::new(*completed),
                };
                device.complete(stamp);
                paged.complete(stamp.lane, stamp.epoch);
            }
            16 => {
                if random.below(4) == 0 {
                    device.refuse_in(Some(random.below(4)));
                }
                paged.release_over(&device, random.below(8) * page);
                device.refuse_in(None);
            }
            17 => paged.end_step(),
            18 => {
                let steps = 1 + random.below(3) as usize;
                paged.release_unneeded_over(&device, steps);
            }
            _ if !live.is_empty() => {
                let at = random.below(live.len() as u64) as usize;
                if !live[at].2 {
                    paged.pin(&live[at].0).unwrap();
                    live[at].2 = true;
                }
            }
            _ => {}
        }
        paged
            .check_invariants()
            .unwrap_or_else(|broken| panic!("seed {seed} op {op}: {broken}\n{config:?}"));
        if let Some(violation) = device.violation() {
            panic!("seed {seed} op {op}: {violation}");
        }
        let held = paged.stats().reserved_bytes + paged.page_stats().lost_bytes;
        assert_eq!(device.held_bytes(), held, "seed {seed} op {op}");
    }
    let _ = (granted, failed);
}

#[test]
fn every_live_byte_has_memory_of_its_own() {
    (0..2000).for_each(run);
}
