//! Each driver call of an export, an import and their ends is refused once.

use std::fs;

use larder_core::Block;
use larder_cuda::{Context, DeviceAllocator, DriverError, ExportError, ImportError, ImportedBlock};

use super::{setup, shareable};
use crate::common::refusal::{SWEEP, Sweep};
use crate::common::{MIB, assert_filled, fill};

/// Exports and imports a block, and ends both. Returns the first error.
fn shared_once(
    context: &Context,
    memory: &DeviceAllocator,
    block: &Block,
) -> Result<(), DriverError> {
    let exported = memory.export(block).map_err(|error| match error {
        ExportError::Driver(error) => error,
        other => panic!("{other}"),
    })?;
    let imported = ImportedBlock::new(context, exported.layout(), exported.descriptors());
    let imported = imported.map_err(|error| match error {
        ImportError::Driver(error) => error,
        other => panic!("{other}"),
    })?;
    assert_eq!(imported.bytes(), block.bytes());
    imported.free().map_err(|refused| refused.error)
}

#[test]
fn each_call_is_refused_once() {
    let sweep = Sweep {
        each_code: true,
        ..SWEEP
    };
    let files = || fs::read_dir("/proc/self/fd").unwrap().count();
    sweep.run(11, |refusal| {
        let context = Context::new(0).unwrap();
        let (memory, stream) = setup(&context, shareable());
        let before = memory.alloc(&stream, 3 * MIB).unwrap();
        let block = memory.alloc(&stream, 5 * MIB).unwrap();
        fill(&stream, block.addr().get(), 100, 5);
        stream.synchronize().unwrap();
        let open = files();
        let outcome = refusal.around(|| shared_once(&context, &memory, &block));
        assert!(refusal.happened() || outcome.is_ok(), "{outcome:?}");
        assert_eq!(files(), open, "descriptors are left");
        // Nothing is refused now, and nothing stays pinned.
        assert_filled(&stream, block.addr().get(), 100, 5);
        shared_once(&context, &memory, &block).unwrap();
        assert_eq!(context.settle(), 0);
        for block in [before, block] {
            memory.free(&stream, block).unwrap();
        }
        stream.synchronize().unwrap();
        memory.release(u64::MAX);
        assert_eq!(memory.stats().reserved_bytes, 0);
    });
}
