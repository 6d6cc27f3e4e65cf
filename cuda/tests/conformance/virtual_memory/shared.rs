//! Handles as file descriptors.

use std::{
    fs::File,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use larder_cuda_abi::constants;

use super::{Mapped, Physical, Reserved, granule};
use crate::{
    api::{context, copy, memory, virtual_memory as vmm},
    gpu::portable,
    own::read,
    refused::refusals,
};

fn exportable(bytes: usize) -> Physical {
    let kind = constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let handle = vmm::create(bytes, &vmm::properties(0, kind), 0).expect("physical memory");
    Physical { handle, bytes }
}

/// Takes ownership of a descriptor from the driver.
fn owned(descriptor: i32) -> File {
    // SAFETY: the driver has just created the descriptor for this process.
    File::from(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

refusals! {
    /// Rule: memory can be exported only as a handle type that was requested when it was created (source: CUDA Driver
    /// API, Virtual Memory Management, cuMemExportToShareableHandle; CUmemAllocationProp, requestedHandleTypes).
    fn only_memory_made_for_it_is_exported(physical = Physical::new(granule())) {
        vmm::export(physical.handle).map(owned)
    } => INVALID_VALUE | _;

    /// Rule: a descriptor that is not an exported handle cannot be imported (source: CUDA Driver API, Virtual Memory
    /// Management, cuMemImportFromShareableHandle, list of errors).
    fn an_ordinary_file_is_not_imported(file = File::open("/dev/null").expect("a file")) {
        vmm::import(file.as_raw_fd())
    } => INVALID_VALUE | _;
}

/// Rule: an imported handle refers to the exported memory (source: CUDA Driver API, Virtual Memory Management,
/// cuMemExportToShareableHandle, cuMemImportFromShareableHandle).
#[test]
fn an_imported_handle_is_the_same_memory() {
    let _gpu = portable();
    let bytes = granule();
    let (physical, range) = (exportable(bytes), Reserved::new(2 * bytes));
    let descriptor = vmm::export(physical.handle).expect("a descriptor");
    let file = owned(descriptor);
    let handle = vmm::import(descriptor).expect("a handle");
    drop(file);
    let imported = Physical { handle, bytes };
    let first = Mapped::new(range.at, &physical);
    let second = Mapped::new(range.plus(bytes), &imported);
    copy::to_device(first.at, &[7; 256]).expect("a copy");
    assert_eq!(read(second.at, 256), [7; 256]);
    drop((first, second));
}

/// Rule: memory exists until every imported handle is released, too (source: CUDA Driver API, Virtual Memory
/// Management, cuMemRelease: "including its shareable counterparts").
#[test]
fn an_imported_handle_keeps_the_memory() {
    let _gpu = portable();
    let bytes = granule();
    let (physical, range) = (exportable(bytes), Reserved::new(bytes));
    let descriptor = vmm::export(physical.handle).expect("a descriptor");
    let file = owned(descriptor);
    let mapped = Mapped::new(range.at, &physical);
    copy::to_device(range.at, &[3; 256]).expect("a copy");
    // The copy may still be running, and unmapping does not wait for it.
    context::synchronize().expect("work that ends well");
    drop(mapped);
    let handle = vmm::import(descriptor).expect("a handle");
    drop((file, physical));
    let imported = Physical { handle, bytes };
    let _mapped = Mapped::new(range.at, &imported);
    assert_eq!(read(range.at, 256), [3; 256]);
}

/// Rule: importing a handle takes no further memory (source: CUDA Driver API, Virtual Memory Management,
/// cuMemImportFromShareableHandle: the same allocation).
#[test]
fn an_imported_handle_takes_no_further_memory() {
    let _gpu = portable();
    let bytes = (256_usize << 20).next_multiple_of(granule());
    let physical = exportable(bytes);
    let descriptor = vmm::export(physical.handle).expect("a descriptor");
    let file = owned(descriptor);
    let (before, _) = memory::info().expect("sizes");
    let handle = vmm::import(descriptor).expect("a handle");
    let imported = Physical { handle, bytes };
    let (after, _) = memory::info().expect("sizes");
    assert!(after + bytes / 2 > before, "{before} then {after}");
    drop((file, imported));
}
