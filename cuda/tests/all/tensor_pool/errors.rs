//! Refusals change nothing.

use larder_core::{AllocError, FreeError};
use larder_cuda::{Context, DeviceAllocError, DeviceFreeError, DeviceTensorPool, TensorPoolConfig};

use crate::common::{alone_and_clean, together};
use crate::tensor_pool::rig::{Device, GIB, MIB, soon};

fn refusal(reason: AllocError) -> DeviceAllocError {
    DeviceAllocError::Memory {
        reason,
        driver: None,
    }
}

#[test]
fn a_stream_of_another_context_is_refused() {
    alone_and_clean(|_| {
        let device = Device::new();
        let other = Context::new(1).unwrap().cudarc().new_stream().unwrap();
        let refused = DeviceTensorPool::new(&device.memory, &other, TensorPoolConfig::new());
        assert_eq!(refused.unwrap_err(), DeviceAllocError::Stream);
    });
}

#[test]
fn what_cannot_be_given_is_an_error_with_its_reason() {
    let _turn = together();
    let device = Device::with_limit(64 * MIB);
    let pool = device.pool(soon());
    assert_eq!(pool.alloc(0).unwrap_err(), refusal(AllocError::ZeroSize));
    let requested_bytes = u64::MAX;
    assert_eq!(
        pool.alloc(u64::MAX).unwrap_err(),
        refusal(AllocError::TooLarge { requested_bytes })
    );
    let error = pool.alloc(GIB).unwrap_err();
    let DeviceAllocError::Memory { reason, .. } = error else {
        panic!("{error}");
    };
    assert!(matches!(reason, AllocError::OutOfMemory(_)), "{reason}");
    let block = pool.alloc(MIB).unwrap();
    pool.free(block).unwrap();
    assert_eq!(device.use_of_memory().1, 0);
}

#[test]
fn a_full_table_is_an_error_and_the_memory_goes_back() {
    let _turn = together();
    let device = Device::new();
    let mut config = soon();
    config.live = 2;
    let pool = device.pool(config);
    let blocks = [1, 2, 3].map(|_| pool.alloc(MIB).unwrap());
    let (_, live) = device.use_of_memory();
    let full = pool.alloc(MIB).unwrap_err();
    assert_eq!(full, refusal(AllocError::TableFull { records: 4 }));
    assert_eq!(device.use_of_memory().1, live);
    blocks
        .into_iter()
        .for_each(|block| pool.free(block).unwrap());
}

#[test]
fn a_block_of_another_pool_comes_back() {
    let _turn = together();
    let device = Device::new();
    let old = device.pool(soon());
    let stale = old.alloc(MIB).unwrap();
    drop(old);
    // The same memory is now used by another pool.
    let pool = device.pool(soon());
    let block = pool.alloc(MIB).unwrap();
    assert_eq!(block.addr(), stale.addr());
    let rejected = pool.free(stale).unwrap_err();
    assert_eq!(rejected.error, DeviceFreeError::Block(FreeError::Unknown));
    assert_eq!(rejected.value.addr(), block.addr());
    pool.free(block).unwrap();
}
