//! A [`Vmem`] over two of TensorFlow's BFCs whose invariants are walked after every call.

#![expect(clippy::result_large_err, reason = "tests")]

use crate::common::{
    self, Call, GIB, MIB, Picture, Source, Tuple, picture_of, regions_of, table, tuple_of,
};
use larder_core::{
    Bfc, BfcAllocator, BfcConfig, Block, BlockAllocator, Placement, Request, Vmem, VmemError,
};

type Side = BfcAllocator<'static, Source>;

/// Device first, then host.
pub(crate) struct Sides {
    pub(crate) vmem: Vmem<Side>,
}

fn side(config: BfcConfig, source: Source) -> Side {
    let bfc = Bfc::new(config, table(common::RECORDS)).expect("the configuration is good");
    BfcAllocator::new(bfc, source)
}

impl Sides {
    pub(crate) fn new(device: BfcConfig, host_limit: u64) -> Self {
        let device = side(device, Source::new());
        let host = BfcConfig::tensorflow(host_limit);
        let host = side(host, Source::from_address(0x1_0000_0000));
        Self {
            vmem: Vmem::new(device, host),
        }
    }

    pub(crate) fn device_only(device: BfcConfig) -> Self {
        Self {
            vmem: Vmem::device_only(side(device, Source::new())),
        }
    }

    /// The start of the sequences: growth on both sides, 1 GiB of host memory.
    pub(crate) fn growing(device_limit: u64) -> Self {
        Self::new(BfcConfig::tensorflow(device_limit), GIB)
    }

    pub(crate) fn side(&self, placement: Placement) -> &Side {
        match placement {
            Placement::Device => self.vmem.device(),
            Placement::Host => self.vmem.host().expect("there is a host side"),
        }
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        for side in [Some(self.vmem.device()), self.vmem.host()] {
            let Some(side) = side else { continue };
            side.with(|bfc| {
                if let Err(violation) = bfc.check_invariants() {
                    panic!("{violation}\n{}", bfc.dump());
                }
            });
        }
    }

    #[track_caller]
    pub(crate) fn try_alloc(&self, bytes: u64) -> Result<(Placement, Block), VmemError> {
        let placed = self.vmem.alloc_placed(&Request::new(bytes));
        self.check();
        let placed = placed?;
        assert_eq!(placed.grant.wait, None, "one stream never waits");
        let block = placed.grant.block;
        assert_eq!(self.vmem.placement(&block), Some(placed.placement));
        Ok((placed.placement, block))
    }

    /// On the side that is expected, with the statistics of that side after it; the other side's
    /// do not change, and its pool not by one chunk.
    #[track_caller]
    pub(crate) fn alloc(&self, bytes: u64, placement: Placement, expected: Tuple) -> Block {
        let other = match placement {
            Placement::Device => Placement::Host,
            Placement::Host => Placement::Device,
        };
        let before = self.picture(other);
        let (served, block) = self.try_alloc(bytes).expect("one side has memory");
        assert_eq!(served, placement);
        assert_eq!(self.tuple(placement), expected);
        assert_eq!(self.picture(other), before);
        block
    }

    pub(crate) fn picture(&self, placement: Placement) -> Picture {
        self.side(placement).with(|bfc| picture_of(bfc))
    }

    pub(crate) fn tuple(&self, placement: Placement) -> Tuple {
        tuple_of(&self.side(placement).stats())
    }

    /// The wrapper's statistics as upstream gives them.
    pub(crate) fn antman(&self) -> Tuple {
        tuple_of(&self.vmem.vmem_stats().antman())
    }

    /// The wrapper's statistics as they are.
    pub(crate) fn joint(&self) -> Tuple {
        tuple_of(&self.vmem.stats())
    }

    /// Frees device blocks; the device's statistics after it.
    #[track_caller]
    pub(crate) fn free(&self, blocks: impl IntoIterator<Item = Block>, expected: Tuple) {
        let before = self.picture(Placement::Host);
        for block in blocks {
            self.vmem.free(block).expect("a block of one side");
            self.check();
        }
        assert_eq!(self.tuple(Placement::Device), expected);
        assert_eq!(self.picture(Placement::Host), before);
    }

    /// Adjusts the device; the limit answered and the regions left. No statistic changes.
    #[track_caller]
    pub(crate) fn adjust(&self, limit_mib: u64, answer_mib: u64, regions_mib: &[u64]) {
        let tuple = self.tuple(Placement::Device);
        let host = self.picture(Placement::Host);
        let change = self.vmem.device().adjust(limit_mib * MIB);
        self.check();
        assert_eq!(
            (change.limit_bytes, change.excess_bytes),
            (answer_mib * MIB, 0)
        );
        assert_eq!(self.region_mib(), regions_mib);
        assert_eq!(self.tuple(Placement::Device), tuple);
        assert_eq!(self.picture(Placement::Host), host);
    }

    /// Sizes of the device's regions in address order.
    pub(crate) fn region_mib(&self) -> Vec<u64> {
        let regions = self.vmem.device().with(|bfc| regions_of(bfc));
        regions.iter().map(|r| r.range.bytes() / MIB).collect()
    }

    /// The device's calls since the last time this was asked.
    pub(crate) fn device_log(&self) -> Vec<Call> {
        self.vmem.device().source().take_log()
    }
}
