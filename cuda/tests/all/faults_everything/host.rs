//! The parts that use host memory.

use larder_cuda::SyncedMemory;
use larder_cuda::synced::{Head, HostMemory};

use crate::faults_everything::failure::Failure;
use crate::faults_everything::objects::{LEN, Objects};

/// Copies with pinned buffers' own functions and with cudarc's, and drops a buffer while streams read it.
pub(crate) fn pinned(objects: &Objects) -> Result<(), Failure> {
    let Objects {
        memory,
        pinned,
        streams: [a, b, c],
        ..
    } = objects;
    let mut host = pinned.copy_of(&[7u32; LEN])?;
    let mut there = memory.zeros::<u32>(a, LEN)?;
    host.copy_to(a, &mut there)?;
    objects.check()?;
    host.as_mut_slice()?.fill(8);
    assert_eq!(objects.read(b, &there)?, [7; LEN]);
    let mut back = pinned.zeros::<u32>(LEN)?;
    back.copy_from(b, &there)?;
    objects.check()?;
    assert_eq!(back.as_slice()?, [7; LEN]);
    // With cudarc's functions.
    c.memcpy_htod(&host, &mut there)?;
    c.memcpy_dtoh(&there, &mut back)?;
    objects.check()?;
    assert_eq!(back.as_slice()?, [8; LEN]);
    // Dropped while two streams use it. Its memory is reused once they are done.
    let mut elsewhere = memory.zeros::<u32>(c, LEN)?;
    host.as_mut_slice()?.fill(9);
    host.copy_to(b, &mut there)?;
    host.copy_to(c, &mut elsewhere)?;
    objects.check()?;
    drop(host);
    let mut next = pinned.zeros::<u32>(LEN)?;
    next.as_mut_slice()?.fill(1);
    assert_eq!(objects.read(a, &there)?, [9; LEN]);
    assert_eq!(objects.read(a, &elsewhere)?, [9; LEN]);
    drop((back, next));
    pinned.release();
    Ok(())
}

/// Goes through every state of values that host and device use in turn, and adopts memory of either side.
pub(crate) fn synced(objects: &Objects) -> Result<(), Failure> {
    let pool = || objects.pinned.clone();
    states(objects, HostMemory::Pageable)?;
    states(objects, HostMemory::Pinned(pool()))?;
    adopted(objects, HostMemory::PinnedOrPageable(pool()))
}

fn states(objects: &Objects, host: HostMemory) -> Result<(), Failure> {
    let Objects {
        memory,
        streams: [a, b, c],
        ..
    } = objects;
    let ones = memory.upload(a, &[1u32; LEN])?;
    let mut values = SyncedMemory::<u32>::new(memory, a, host, LEN)?;
    assert_eq!(values.cpu()?, [0; LEN]);
    values.cpu_mut()?.fill(1);
    values.push_async(b)?.wait()?;
    assert_eq!(values.head(), Head::Synced);
    objects.add_on(a, values.gpu_mut()?, &ones)?;
    assert_eq!(values.head(), Head::Device);
    values.pull_async(b)?.wait()?;
    assert_eq!(values.cpu()?, [2; LEN]);
    // A read after a copy that the host does not wait for.
    values.cpu_mut()?.fill(3);
    core::mem::forget(values.push_async(c)?);
    assert_eq!(objects.read(b, &values.gpu()?)?, [3; LEN]);
    values.cpu_overwrite()?.copy_from_slice(&[4; LEN])?;
    assert_eq!(objects.read(c, &values.gpu()?)?, [4; LEN]);
    values.gpu_overwrite()?.copy_from(b, &[5; LEN])?;
    objects.check()?;
    assert_eq!(values.cpu()?, [5; LEN]);
    Ok(())
}

fn adopted(objects: &Objects, host: HostMemory) -> Result<(), Failure> {
    let Objects {
        memory,
        pinned,
        streams: [a, b, c],
        ..
    } = objects;
    let mut lent = memory.zeros::<u32>(b, LEN)?;
    let mut values = SyncedMemory::<u32>::new(memory, a, host, LEN)?;
    assert_eq!(objects.read(b, &values.gpu()?)?, [0; LEN]);
    values.adopt_host(vec![1; LEN]).map_err(|_| ()).unwrap();
    assert_eq!(objects.read(b, &values.gpu()?)?, [1; LEN]);
    let buffer = pinned.copy_of(&[2; LEN])?;
    values.adopt_pinned(buffer).map_err(|_| ()).unwrap();
    assert_eq!(objects.read(c, &values.gpu()?)?, [2; LEN]);
    let buffer = memory.upload(c, &[3; LEN])?;
    values.adopt_device(buffer).map_err(|_| ()).unwrap();
    assert_eq!(values.cpu()?, [3; LEN]);
    values.cpu_mut()?.fill(4);
    values.adopt_device_borrowed(lent.as_view_mut()).unwrap();
    assert_eq!(values.cpu()?, [0; LEN]);
    values.cpu_mut()?.fill(6);
    values.gpu()?;
    drop(values);
    assert_eq!(objects.read(a, &lent)?, [6; LEN]);
    Ok(())
}
