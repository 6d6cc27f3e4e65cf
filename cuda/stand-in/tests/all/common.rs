//! What tests of every kind need.

use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_cuda_abi::Code;

use crate::driver::{cuMemcpyDtoH_v2, larder_stand_in_alive, larder_stand_in_findings};

/// Granularity of virtual memory.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// Nobody else uses the driver meanwhile.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[track_caller]
pub(crate) fn ok(code: Code) {
    assert_eq!(code, Code::SUCCESS);
}

/// What a call writes to its first argument.
#[track_caller]
pub(crate) fn made<T: Default>(create: impl FnOnce(&mut T) -> Code) -> T {
    let mut value = T::default();
    ok(create(&mut value));
    value
}

/// Bytes of device memory.
#[track_caller]
pub(crate) fn read(from: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; count];
    ok(cuMemcpyDtoH_v2(bytes.as_mut_ptr() as usize, from, count));
    bytes
}

fn text(of: impl Fn(*mut u8, u64) -> u64) -> String {
    let mut buf = vec![0; of(null_mut(), 0) as usize];
    of(buf.as_mut_ptr(), buf.len() as u64);
    String::from_utf8(buf).unwrap()
}

/// What the driver found to be wrong.
pub(crate) fn findings() -> String {
    text(|buf, len| larder_stand_in_findings(buf, len))
}

/// What exists.
pub(crate) fn alive() -> String {
    text(|buf, len| larder_stand_in_alive(buf, len))
}
