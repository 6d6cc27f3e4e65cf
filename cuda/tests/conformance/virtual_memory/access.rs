//! cuMemSetAccess and cuMemGetAccess.

use larder_cuda_abi::constants;

use super::{Mapped, Physical, READ_WRITE, Reserved, granule};
use crate::{
    api::{Answer, context, copy, virtual_memory as vmm},
    child,
    gpu::{self, portable},
    own::{Kernels, Stream, read},
    refused::refusals,
};

refusals! {
    /// Rule: access can be set only for mapped ranges (source: CUDA Driver API, Virtual Memory Management,
    /// cuMemSetAccess: "the range must be a fully mapped address range").
    fn access_is_set_for_mapped_ranges_only(one = Physical::new(granule()), range = Reserved::new(2 * granule())) {
        vmm::set_access(range.at, granule(), 0, READ_WRITE),
        {
            let _mapped = Mapped::bare(range.at, &one);
            vmm::set_access(range.at, 2 * granule(), 0, READ_WRITE)
        }
    } => INVALID_VALUE | _;

    /// Rule: access can be set only for a device that exists (source: CUDA Driver API, Virtual Memory Management,
    /// cuMemSetAccess, list of errors).
    fn access_is_set_for_a_device_that_is_there(one = Physical::new(granule()), range = Reserved::new(granule()),
        _mapped = Mapped::bare(range.at, &one)) {
        vmm::set_access(range.at, granule(), gpu::absent_device(), READ_WRITE)
    } => INVALID_DEVICE | _;
}

/// Rule: all mappings start without access (source: CUDA Driver API, Virtual Memory Management, cuMemMap, cuMemUnmap:
/// "all mappings start with no accessibility setup").
#[test]
fn a_copy_before_access_is_set_fails() {
    child::portable(|_| {
        let (physical, range) = (Physical::new(granule()), Reserved::new(granule()));
        let _mapped = Mapped::bare(range.at, &physical);
        let copied = copy::to_device(range.at, &[1; 64]);
        assert!(copied.and_then(|()| context::synchronize()).is_err());
    });
}

/// Rule: kernels fail if they use mapped memory without access (source: CUDA Driver API, Virtual Memory Management,
/// cuMemMap).
#[test]
fn a_kernel_before_access_is_set_fails() {
    child::portable(|_| {
        let kernels = Kernels::load();
        let (physical, range) = (Physical::new(granule()), Reserved::new(granule()));
        let _mapped = Mapped::bare(range.at, &physical);
        let stream = Stream::blocking();
        kernels.fill(range.at, 16, 1, stream.0);
        assert!(context::synchronize().is_err());
    });
}

/// Rule: at each address of a mapping, cuMemGetAccess returns no access before access is set, and then the access that
/// was set (source: CUDA Driver API, Virtual Memory Management, cuMemGetAccess).
#[test]
fn access_is_known_as_it_was_set() {
    let _gpu = portable();
    let (physical, range) = (Physical::new(granule()), Reserved::new(granule()));
    let _mapped = Mapped::bare(range.at, &physical);
    assert_eq!(
        vmm::access(range.at, 0),
        Ok(u64::from(constants::MEM_ACCESS_NONE))
    );
    vmm::set_access(range.at, granule(), 0, READ_WRITE).expect("access");
    for offset in [0, granule() - 1] {
        assert_eq!(
            vmm::access(range.plus(offset), 0),
            Ok(u64::from(READ_WRITE))
        );
    }
}

/// Rule: memory that is mapped again must be given access again (source: CUDA Driver API, Virtual Memory Management,
/// cuMemUnmap: "any new mapping to this virtual address will need to have access granted").
#[test]
fn a_new_mapping_starts_without_access() {
    let _gpu = portable();
    let (physical, range) = (Physical::new(granule()), Reserved::new(granule()));
    drop(Mapped::new(range.at, &physical));
    let _mapped = Mapped::bare(range.at, &physical);
    assert_eq!(
        vmm::access(range.at, 0),
        Ok(u64::from(constants::MEM_ACCESS_NONE))
    );
}

/// Rule: memory that is set to read-only cannot be written (source: CUDA Driver API, Data types, CUmemAccess_flags,
/// CU_MEM_ACCESS_FLAGS_PROT_READ).
///
/// Uncertain: a driver may not support this access. A failure to set it is accepted.
#[test]
fn a_write_to_read_only_memory_fails() {
    child::portable(|_| {
        let kernels = Kernels::load();
        let bytes = granule();
        let (physical, range) = (Physical::new(bytes), Reserved::new(bytes));
        let _mapped = Mapped::new(range.at, &physical);
        copy::to_device(range.at, &[4; 64]).expect("a copy");
        context::synchronize().expect("work that ends well");
        if vmm::set_access(range.at, bytes, 0, constants::MEM_ACCESS_READ).is_err() {
            println!("this driver knows no read-only access");
            return;
        }
        assert_eq!(read(range.at, 64), [4; 64]);
        kernels.fill(range.at, 16, 1, Stream::blocking().0);
        assert!(context::synchronize().is_err());
    });
}

/// Rule: CU_MEM_ACCESS_FLAGS_PROT_NONE removes access (source: CUDA Driver API, Data types, CUmemAccess_flags).
#[test]
fn access_is_taken_back() {
    child::portable(|_| {
        let (physical, range) = (Physical::new(granule()), Reserved::new(granule()));
        let _mapped = Mapped::new(range.at, &physical);
        let none = constants::MEM_ACCESS_NONE;
        vmm::set_access(range.at, granule(), 0, none).expect("no access");
        assert_eq!(vmm::access(range.at, 0), Ok(u64::from(none)));
        let copied: Answer = copy::to_device(range.at, &[1; 64]);
        assert!(copied.and_then(|()| context::synchronize()).is_err());
    });
}
