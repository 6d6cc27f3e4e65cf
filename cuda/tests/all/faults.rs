//! Every driver call of a program over all kinds of memory is refused once. Nothing panics, each refusal has a reason,
//! the same program then succeeds with the same objects, and nothing is left.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::pages::{PageCall, PageDriver, PagePool};
use larder_core::{Block, BlockAllocator, Request, Shared, SubAllocError, SubAllocator};
use larder_cuda::{
    Context, DeviceAllocError, DeviceFreeError, DeviceMemory, DriverError, DriverPool, Event,
    EventConfig, ManagedMemory, PinnedMemory, StreamAllocator, VirtualMemory,
};

use crate::common::refusal::SWEEP;
use crate::common::{MIB, paged_over, request};

/// Pages that a paged allocator drives, shared with the test, which reads their errors.
struct SharedPages(Arc<VirtualMemory>);

impl PageDriver for SharedPages {
    fn call(&self, step: PageCall) -> Result<(), SubAllocError> {
        self.0.call(step)
    }
}

struct Objects {
    context: Context,
    device: DeviceMemory,
    pinned: PinnedMemory,
    managed: ManagedMemory,
    growing: VirtualMemory,
    pages: Arc<VirtualMemory>,
    paged: Shared<PagePool<'static>, SharedPages>,
    pool: DriverPool,
    event: Event,
}

impl Objects {
    fn make(context: &Context) -> Result<Self, DriverError> {
        let pages = Arc::new(VirtualMemory::new(context, 64 * MIB)?);
        let paged = paged_over(&pages, u64::MAX);
        Ok(Self {
            context: context.clone(),
            device: DeviceMemory::new(context),
            pinned: PinnedMemory::new(context),
            managed: ManagedMemory::new(context)?,
            growing: VirtualMemory::new(context, 64 * MIB)?,
            paged: Shared::new(paged, SharedPages(pages.clone())),
            pages,
            pool: DriverPool::new(context)?,
            event: Event::new(context, EventConfig::default())?,
        })
    }

    /// Uses all objects. Holds nothing at the end, even after errors.
    fn run(&self, stream: &Arc<CudaStream>) -> Vec<DriverError> {
        let outcomes = [
            grow_and_release(&self.device, || self.device.last_error()),
            grow_and_release(&self.pinned, || self.pinned.last_error()),
            grow_and_release(&self.managed, || self.managed.last_error()),
            grow_and_release(&self.growing, || self.growing.last_error()),
            self.move_pages(),
            self.use_pool(stream),
            self.use_event(stream),
        ];
        outcomes.into_iter().filter_map(Result::err).collect()
    }

    /// Returns the bytes of all sub-allocators, which hold nothing between two runs.
    fn held_bytes(&self) -> u64 {
        let regions = self.device.held_bytes() + self.pinned.held_bytes();
        let pages = self.growing.held_bytes() + self.pages.held_bytes();
        regions + self.managed.held_bytes() + pages
    }

    /// Takes memory of each kind and leaves it to be released when the objects are dropped.
    fn hold(&self, stream: &Arc<CudaStream>) {
        let sources: [&dyn SubAllocator; 4] =
            [&self.device, &self.pinned, &self.managed, &self.growing];
        for source in sources {
            let _ = source.grow(request(4 * MIB));
            let _ = source.grow(request(2 * MIB));
        }
        let _ = self.pool.alloc(stream, MIB);
    }

    fn move_pages(&self) -> Result<(), DriverError> {
        let page = self.pages.page_bytes();
        let mut held = Vec::new();
        let outcome = self.alloc_pages(page, &mut held);
        for block in held {
            self.paged.free(block).unwrap();
        }
        self.paged.adjust(0);
        self.paged.adjust(u64::MAX);
        outcome
    }

    fn alloc_pages(&self, page: u64, held: &mut Vec<Block>) -> Result<(), DriverError> {
        let alloc = |bytes| {
            let outcome = self.paged.alloc(&Request::new(bytes));
            outcome
                .map(|grant| grant.block)
                .map_err(|_| self.pages.last_error().expect("a refusal has a reason"))
        };
        for _ in 0..4 {
            held.push(alloc(page)?);
        }
        for index in [2, 0] {
            self.paged.free(held.remove(index)).unwrap();
        }
        held.push(alloc(3 * page)?);
        Ok(())
    }

    fn use_pool(&self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let block = self.pool.alloc(stream, MIB).map_err(|error| match error {
            DeviceAllocError::Driver(error)
            | DeviceAllocError::Memory {
                driver: Some(error),
                ..
            } => error,
            other => panic!("{other}"),
        })?;
        if let Err(rejected) = self.pool.free(stream, block) {
            let again = self.pool.free(stream, rejected.value);
            again.expect("a refused block stays");
            let DeviceFreeError::Driver(error) = rejected.error else {
                panic!("{:?}", rejected.error)
            };
            return Err(error);
        }
        self.pool.trim(0)?;
        self.pool.driver_stats().map(|_| ())
    }

    fn use_event(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.event.record(stream)?;
        self.event.wait_on(stream)?;
        self.event.synchronize()?;
        assert!(self.event.query()?);
        let timed = EventConfig {
            timing: true,
            ..EventConfig::default()
        };
        let another = Event::new(&self.context, timed)?;
        another.record(stream)
    }
}

/// Grows two ranges, and releases the second while the first is held.
fn grow_and_release(
    source: &dyn SubAllocator,
    last_error: impl Fn() -> Option<DriverError>,
) -> Result<(), DriverError> {
    let reason = |_| last_error().expect("a refusal has a reason");
    let first = source.grow(request(4 * MIB)).map_err(reason)?;
    let mut outcome = Ok(());
    match source.grow(request(2 * MIB)).map_err(reason) {
        Ok(second) => outcome = outcome.and(release(source, second).map_err(reason)),
        Err(error) => outcome = Err(error),
    }
    outcome.and(release(source, first).map_err(reason))
}

/// Releases a range. After a refusal the range is still held, and the second try must succeed.
fn release(source: &dyn SubAllocator, range: larder_core::AddrRange) -> Result<(), SubAllocError> {
    let outcome = source.release(range);
    if outcome.is_err() {
        source.release(range).expect("a refused range stays");
    }
    outcome
}

/// Refuses calls while objects are made and used, and, with `until_gone`, also while they are dropped.
fn sweep(until_gone: bool) {
    SWEEP.run(100, |refusal| {
        let context = Context::new(0).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let made = refusal.around(|| Objects::make(&context));
        if let Ok(objects) = &made {
            refusal.around(|| objects.run(&stream));
        }
        let kept = if until_gone {
            refusal.around(|| {
                let _ = made.map(|objects| objects.hold(&stream));
            });
            None
        } else {
            made.ok()
        };
        let objects = kept.unwrap_or_else(|| Objects::make(&context).unwrap());
        assert_eq!(objects.run(&stream), []);
        assert_eq!(objects.held_bytes(), 0);
        drop((objects, stream));
        assert_eq!(context.settle(), 0);
    });
}

#[test]
fn any_call_may_be_refused_while_objects_are_made_and_used() {
    sweep(false);
}

#[test]
fn any_call_may_be_refused_until_all_objects_are_gone() {
    sweep(true);
}
