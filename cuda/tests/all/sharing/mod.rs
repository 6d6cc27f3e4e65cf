//! Memory that several processes use: one exports it, the other imports it. Scripts and drawn programs check that
//! exported memory stays in place.

mod faults;
mod processes;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use cudarc::driver::{CudaStream, sys};
use larder_cuda::driver::abi::constants;
use larder_cuda::{
    ArenaPolicy, Context, DeviceAllocError, DeviceAllocator, DeviceConfig, DriverError,
    ExportError, ExportedBlock, ImportError, ImportedBlock, SharedLayout,
};

use crate::common::{MIB, alone_and_clean, assert_filled, fill};

fn shareable() -> DeviceConfig {
    DeviceConfig {
        shareable: true,
        arenas: ArenaPolicy::Never,
        ..DeviceConfig::new()
    }
}

fn setup(context: &Context, config: DeviceConfig) -> (DeviceAllocator, Arc<CudaStream>) {
    let stream = context.cudarc().new_stream().unwrap();
    let memory = DeviceAllocator::with_config(context, config).unwrap();
    (memory, stream)
}

fn import(context: &Context, exported: &ExportedBlock) -> ImportedBlock {
    ImportedBlock::new(context, exported.layout(), exported.descriptors()).unwrap()
}

/// Returns whether device 0 has access to an address, which shows that memory is mapped there.
fn is_mapped(context: &Context, at: u64) -> bool {
    context.driver().access(at, 0) == Ok(u64::from(constants::MEM_ACCESS_READ_WRITE))
}

#[test]
fn what_cannot_be_exported_is_refused() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        {
            let (memory, stream) = setup(&context, shareable());
            let (plain, _) = setup(&context, DeviceConfig::new());
            let block = memory.alloc(&stream, 3 * MIB).unwrap();
            let foreign = plain.alloc(&stream, 3 * MIB).unwrap();
            assert_eq!(
                plain.export(&foreign).err(),
                Some(ExportError::NotShareable)
            );
            assert_eq!(memory.export(&foreign).err(), Some(ExportError::Unknown));
            let block_bytes = block.bytes();
            for (offset, bytes) in [
                (0, 0),
                (block_bytes, 1),
                (0, block_bytes + 1),
                (1, u64::MAX),
                (u64::MAX, 1),
            ] {
                let error = ExportError::Part {
                    offset,
                    bytes,
                    block_bytes,
                };
                assert_eq!(memory.export_part(&block, offset, bytes).err(), Some(error));
            }
            memory.free(&stream, block).unwrap();
            plain.free(&stream, foreign).unwrap();
            stream.synchronize().unwrap();
            memory.release(u64::MAX);
            assert_eq!(memory.stats().reserved_bytes, 0, "nothing is pinned");
        }
    });
}

#[test]
fn units_of_a_reserved_buffer_are_exported_as_blocks_are() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let (memory, stream) = setup(&context, shareable());
        let unit = 2 * MIB as usize;
        let mut buffer = memory.reserve::<u8>(&stream, 16 * unit).unwrap();
        // SAFETY: bytes of any value.
        unsafe { buffer.commit(&stream, unit..4 * unit) }.unwrap();
        assert_eq!(buffer.export(0..2 * unit).err(), Some(ExportError::Unknown));
        let exported = buffer.export(unit + 1..3 * unit).unwrap();
        let first = buffer.address() + unit as u64;
        let ranges = exported
            .iter()
            .map(|unit| (unit.range().start().get(), unit.range().bytes()));
        assert!(ranges.eq([(first, 2 * MIB), (first + 2 * MIB, 2 * MIB)]));
        for (value, unit) in (7..).zip(&exported) {
            let imported = import(&context, unit);
            fill(&stream, imported.range().start().get(), 2 * MIB, value);
            stream.synchronize().unwrap();
        }
        assert_filled(&stream, first, 2 * MIB, 7);
        assert_filled(&stream, first + 2 * MIB, 2 * MIB, 8);
        buffer.decommit(&stream, unit..4 * unit).unwrap();
        stream.synchronize().unwrap();
        memory.release(u64::MAX);
        assert!(is_mapped(&context, first), "it is exported");
        drop(exported);
        memory.release(u64::MAX);
        assert!(!is_mapped(&context, first));
    });
}

#[test]
fn what_cannot_be_imported_is_refused() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        {
            let (memory, stream) = setup(&context, shareable());
            let block = memory.alloc(&stream, 3 * MIB).unwrap();
            let exported = memory.export(&block).unwrap();
            let layout = exported.layout();
            let new = |layout: &SharedLayout, descriptors: &[BorrowedFd<'_>]| {
                ImportedBlock::new(&context, layout, descriptors).map(drop)
            };
            let good: Vec<_> = exported.descriptors().iter().map(AsFd::as_fd).collect();
            let needed = good.len();
            assert_eq!(
                new(layout, &good[1..]),
                Err(ImportError::Descriptors {
                    given: needed - 1,
                    needed
                })
            );
            let mut wrong = layout.clone();
            wrong.bytes += 1 << 30;
            assert_eq!(new(&wrong, &good), Err(ImportError::Layout));
            // Memory of another size, and a file that is not memory.
            let mut wrong = layout.clone();
            wrong.pieces[0] += 2 * MIB;
            wrong.bytes += 2 * MIB;
            let refused = new(&wrong, &good).unwrap_err();
            assert!(matches!(
                refused,
                ImportError::Driver(DriverError::Call { .. })
            ));
            let file = File::open("/dev/null").unwrap();
            let mut files = good.clone();
            files[needed - 1] = file.as_fd();
            let refused = new(layout, &files).unwrap_err();
            assert!(matches!(
                refused,
                ImportError::Driver(DriverError::Call { .. })
            ));
            let imported = import(&context, &exported);
            assert!(imported.part(0, imported.bytes()) == Some(imported.range()));
            for (offset, bytes) in [(0, 0), (1, imported.bytes()), (u64::MAX, 2)] {
                assert_eq!(imported.part(offset, bytes), None);
            }
            drop((imported, exported));
            memory.free(&stream, block).unwrap();
        }
        assert_eq!(context.refused_frees(), 0);
    });
}

#[test]
fn peers_have_access_and_must_be_able_to() {
    alone_and_clean(|_| {
        let (context, peer) = (Context::new(0).unwrap(), Context::new(1).unwrap());
        {
            let with_peers = |peers| DeviceConfig {
                peers,
                ..shareable()
            };
            let refused = DeviceAllocator::with_config(&context, with_peers(vec![7])).unwrap_err();
            assert!(matches!(refused, DeviceAllocError::Driver(_)), "{refused}");
            let (memory, stream) = setup(&context, with_peers(vec![1]));
            let block = memory.alloc(&stream, 3 * MIB).unwrap();
            let at = block.addr().get();
            fill(&stream, at, block.bytes(), 3);
            let mut buffer = memory.reserve::<u8>(&stream, 64 << 20).unwrap();
            // SAFETY: bytes of any value.
            unsafe { buffer.commit(&stream, 0..100) }.unwrap();
            fill(&stream, buffer.address(), 100, 5);
            stream.synchronize().unwrap();
            // Work of the other device, in its own context.
            let theirs = peer.cudarc().new_stream().unwrap();
            assert_filled(&theirs, at, block.bytes(), 3);
            fill(&theirs, at, 100, 4);
            assert_filled(&theirs, buffer.address(), 100, 5);
            theirs.synchronize().unwrap();
            // The other device imports memory that it can reach.
            let exported = memory.export(&block).unwrap();
            let imported = import(&peer, &exported);
            assert_filled(&theirs, imported.range().start().get(), 100, 4);
            drop((imported, exported));
            context.cudarc().bind_to_thread().unwrap();
            assert_filled(&stream, at, 100, 4);
            memory.free(&stream, block).unwrap();
        }
    });
}

/// During a capture nothing can wait for the work of the context.
#[test]
fn an_import_that_cannot_be_waited_for_stays_until_it_can() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        {
            let (memory, stream) = setup(&context, shareable());
            let block = memory.alloc(&stream, 3 * MIB).unwrap();
            let exported = memory.export(&block).unwrap();
            let [dropped, freed] = [(); 2].map(|()| import(&context, &exported));
            let [later, at] = [&dropped, &freed].map(|import| import.range().start().get());
            let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            stream.begin_capture(relaxed).unwrap();
            let refused = freed.free().unwrap_err();
            // This drop reports nothing, and work may still use the memory.
            drop(dropped);
            assert!(is_mapped(&context, at) && is_mapped(&context, later));
            let _ = stream.end_capture(
                sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
            );
            refused.value.free().unwrap();
            assert!(!is_mapped(&context, at) && is_mapped(&context, later));
            assert_eq!(context.settle(), 0);
            assert!(!is_mapped(&context, later));
            drop(exported);
            memory.free(&stream, block).unwrap();
        }
    });
}
