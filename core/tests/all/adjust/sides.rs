//! A [`Vmem`] over two of our BFCs, or two of TensorFlow's, whose invariants are checked after every call.

#![expect(clippy::result_large_err, reason = "tests")]

use std::cell::RefCell;
use std::fmt::Debug;

use crate::common::{
    self, GIB, MIB, Picture, Tuple, Upstream, UpstreamPicture, UpstreamSide, apart, picture_of,
    table, tuple_of,
};
use larder_core::{
    BestFit, Block, BlockAllocator, Placement, RegionConfig, RegionPool, Request, Shared,
};
use larder_model::antman::{Vmem, VmemError};
use larder_model::tensorflow::Bfc as Tensorflow;
use larder_model::{Call, Source};

/// One of ours.
pub(crate) type OurSide = Shared<RegionPool<'static>, Source>;

/// The calls of a side beyond those of [`Vmem`].
pub(crate) trait Side: BlockAllocator {
    type Picture: PartialEq + Debug;
    fn check(&self);
    fn picture(&self) -> Self::Picture;
}

impl Side for OurSide {
    type Picture = Picture;

    #[track_caller]
    fn check(&self) {
        self.with(|bfc| {
            if let Err(violation) = bfc.check_invariants() {
                panic!("{violation}\n{}", bfc.dump());
            }
        });
    }

    fn picture(&self) -> Picture {
        self.with(|bfc| picture_of(bfc))
    }
}

impl Side for UpstreamSide {
    type Picture = UpstreamPicture;

    /// Every call has checked.
    fn check(&self) {}

    fn picture(&self) -> UpstreamPicture {
        self.0.borrow().picture()
    }
}

/// Device first, then host.
pub(crate) struct Sides<S: Side = OurSide> {
    pub(crate) vmem: Vmem<S>,
}

/// Upstream's on both sides.
pub(crate) type UpstreamSides = Sides<UpstreamSide>;

fn side(config: RegionConfig, source: Source) -> OurSide {
    let bfc = RegionPool::new(config, table(common::RECORDS)).expect("the configuration is good");
    Shared::new(bfc, source)
}

/// Creates the host's sub-allocator, far below the device's.
fn host_source() -> Source {
    let source = Source::new(0x1_0000_0000, 1 << 40);
    source.leave_gaps(common::UNIT);
    source
}

impl Sides {
    /// Ours, the host growing by MiB.
    pub(crate) fn new(device: RegionConfig, host_limit: u64) -> Self {
        let device = side(device, apart());
        let host = common::ranged(MIB, host_limit);
        let host = side(host, host_source());
        Self {
            vmem: Vmem::new(device, host),
        }
    }

    pub(crate) fn device_only(device: RegionConfig) -> Self {
        Self {
            vmem: Vmem::device_only(side(device, apart())),
        }
    }

    /// Growth on both sides, 1 GiB of host memory.
    pub(crate) fn growing(device_limit: u64) -> Self {
        Self::new(common::ranged(MIB, device_limit), GIB)
    }
}

impl UpstreamSides {
    /// The start of the sequences: growth on both sides, 1 GiB of host memory.
    pub(crate) fn upstream(device_limit: u64) -> Self {
        let device = Upstream::over(Tensorflow::new(device_limit), apart());
        let host = Upstream::over(Tensorflow::new(GIB), host_source());
        let [device, host] = [device, host].map(|side| UpstreamSide(RefCell::new(side)));
        Self {
            vmem: Vmem::new(device, host),
        }
    }

    /// Adjusts the device; the limit answered and the regions left. No statistic changes.
    #[track_caller]
    pub(crate) fn adjust(&self, limit_mib: u64, answer_mib: u64, regions_mib: &[u64]) {
        let tuple = self.tuple(Placement::Device);
        let host = self.picture(Placement::Host);
        let in_force = self.vmem.device().0.borrow_mut().adjust(limit_mib * MIB);
        assert_eq!(in_force, answer_mib * MIB);
        assert_eq!(self.region_mib(), regions_mib);
        assert_eq!(self.tuple(Placement::Device), tuple);
        assert_eq!(self.picture(Placement::Host), host);
    }

    /// Sizes of the device's regions in address order.
    pub(crate) fn region_mib(&self) -> Vec<u64> {
        let device = self.vmem.device().0.borrow();
        device.bfc.regions().map(|r| r.bytes() / MIB).collect()
    }

    /// Returns the device's calls since the last call of this.
    pub(crate) fn device_log(&self) -> Vec<Call> {
        self.vmem.device().0.borrow().source.take_log()
    }
}

impl<S: Side> Sides<S> {
    pub(crate) fn side(&self, placement: Placement) -> &S {
        match placement {
            Placement::Device => self.vmem.device(),
            Placement::Host => self.vmem.host().expect("there is a host side"),
        }
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        self.vmem.device().check();
        if let Some(host) = self.vmem.host() {
            host.check();
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

    pub(crate) fn picture(&self, placement: Placement) -> S::Picture {
        self.side(placement).picture()
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
}
