//! The scenario's parts. Each does what a program would do, and stops at its first error.

use larder_core::{AllocError, Block};
use larder_cuda::{DeviceAllocError, DeviceBuffer, DeviceTensorPool};

use crate::common::MIB;
use crate::faults_everything::failure::{Failure, of_allocator};
use crate::faults_everything::graph::Capture;
use crate::faults_everything::objects::{self, LEN, Objects};

pub(crate) type Part = fn(&Objects) -> Result<(), Failure>;

pub(crate) const PARTS: [(&str, Part); 7] = [
    ("steps", steps),
    ("buffers", buffers),
    ("pinned", crate::faults_everything::host::pinned),
    ("synced", crate::faults_everything::host::synced),
    ("tensors", tensors),
    ("graph", graph),
    ("blocks", blocks),
];

/// Moves pages, makes streams and the host wait, and releases memory.
fn blocks(objects: &Objects) -> Result<(), Failure> {
    let Objects {
        memory,
        streams: [a, b, c],
        ..
    } = objects;
    // The memory that other parts left must not be in the way.
    objects.context.synchronize()?;
    memory.release(u64::MAX);
    let first = objects.block(&[0], 3 * MIB)?;
    let mut second = objects.block(&[1], 2 * MIB)?;
    first.fill(a, 1)?;
    second.fill(b, 2)?;
    // Memory that one stream freed goes to another after a wait.
    drop(first);
    let first = objects.block(&[1], 3 * MIB)?;
    first.fill(b, 4)?;
    memory.end_step();
    second.use_on(a)?;
    second.expect(a, 2)?;
    second.fill(a, 5)?;
    first.expect(b, 4)?;
    drop((first, second));
    // Every second block is freed and pending. Pages move to make room for a larger block.
    let mut blocks = Vec::new();
    for value in 10..14 {
        let stream = usize::from(value) % 3;
        let block = objects.block(&[stream], 4 * MIB)?;
        block.fill(&objects.streams[stream], value)?;
        blocks.push((block, stream, value));
    }
    let small = objects.block(&[2], 4096)?;
    small.fill(c, 3)?;
    let freed: Vec<_> = blocks
        .extract_if(.., |(_, _, value)| *value % 2 == 0)
        .collect();
    drop(freed);
    let large = objects.block(&[0], 6 * MIB)?;
    large.fill(a, 6)?;
    match objects.block(&[1], 6 * MIB) {
        Ok(_) => panic!("there was to be no room"),
        Err(error) => match of_allocator(&error) {
            Some(DeviceAllocError::Memory {
                reason: AllocError::OutOfMemory(_),
                ..
            }) => {}
            _ => return Err(error),
        },
    }
    for (block, stream, value) in &blocks {
        block.expect(&objects.streams[*stream], *value)?;
    }
    large.expect(a, 6)?;
    drop((large, blocks));
    let large = objects.block(&[1], 10 * MIB)?;
    large.fill(b, 7)?;
    memory.release(2 * MIB);
    small.expect(c, 3)?;
    drop((large, small));
    memory.release(u64::MAX);
    memory.end_step();
    Ok(())
}

fn steps(objects: &Objects) -> Result<(), Failure> {
    let stream = &objects.streams[0];
    for value in 1..4 {
        let _step = objects.memory.step(stream)?;
        let first = objects.block(&[0], MIB)?;
        first.fill(stream, value)?;
        let second = objects.block(&[0], 2 * MIB)?;
        second.fill(stream, value + 10)?;
        drop(first);
        let third = objects.block(&[0], MIB / 2)?;
        third.fill(stream, value + 20)?;
        second.expect(stream, value + 10)?;
    }
    Ok(())
}

fn buffers(objects: &Objects) -> Result<(), Failure> {
    let Objects {
        memory,
        streams: [a, b, c],
        ..
    } = objects;
    let ones = memory.upload(a, &[1u32; LEN])?;
    let mut sum = memory.zeros::<u32>(a, LEN)?;
    objects.add_on(a, sum.as_view_mut(), &ones)?;
    objects.add_on(b, sum.as_view_mut(), &ones)?;
    let (mut low, mut high) = sum.split_at_mut(LEN / 2);
    c.memset_zeros(&mut low)?;
    b.memcpy_dtod(&ones.slice(LEN / 2..), &mut high)?;
    objects.check()?;
    let values = objects.read(a, &sum)?;
    assert_eq!(values[..LEN / 2], [0; LEN / 2]);
    assert_eq!(values[LEN / 2..], [1; LEN - LEN / 2]);
    // Freed while another stream reads it; then its memory is written again.
    let mut copy = memory.zeros::<u32>(c, LEN)?;
    c.memcpy_dtod(&ones, &mut copy)?;
    objects.check()?;
    drop((ones, sum));
    let next = memory.upload(a, &[9u32; LEN])?;
    assert_eq!(objects.read(b, &copy)?, [1; LEN]);
    // Taken apart and rebuilt.
    objects.add_on(b, copy.as_view_mut(), &next)?;
    let raw = copy.leak().map_err(|rejected| rejected.error)?;
    // SAFETY: the parts came from that buffer, and its stream waits for all others.
    let copy = unsafe { DeviceBuffer::<u32>::from_raw(memory, c, raw) }?;
    assert_eq!(objects.read(c, &copy)?, [10; LEN]);
    Ok(())
}

/// Uses a pool of blocks on one stream. The pool keeps working after an error.
fn tensors(objects: &Objects) -> Result<(), Failure> {
    let config = objects::tensor_config();
    let pool = DeviceTensorPool::new(&objects.memory, &objects.streams[1], config)?;
    let outcome = until_planned(&pool);
    if outcome.is_err() {
        let _ = objects.check();
        // Discards a plan that may exist already.
        pool.replan();
        until_planned(&pool).expect("no second refusal");
    }
    outcome
}

/// Runs steps until there is a plan and one more step uses it.
fn until_planned(pool: &DeviceTensorPool) -> Result<(), Failure> {
    let stream = pool.stream();
    for value in 0..100 {
        let is_planned = pool.is_planned();
        let step = pool.step();
        let alloc = |bytes| Ok::<_, Failure>(Tensor(pool, Some(pool.alloc(bytes)?)));
        let first = alloc(200_000)?;
        objects::fill(stream, first.address(), value)?;
        let second = alloc(1000)?;
        objects::fill(stream, second.address(), value + 1)?;
        drop(first);
        let third = alloc(60_000)?;
        objects::fill(stream, third.address(), value + 2)?;
        objects::expect(stream, second.address(), value + 1)?;
        drop((second, third));
        step.end()?;
        if is_planned {
            return Ok(());
        }
    }
    panic!("no plan: {:?}", pool.plan_error());
}

/// A block of the pool that is freed even after an error.
struct Tensor<'p>(&'p DeviceTensorPool, Option<Block>);

impl Tensor<'_> {
    fn address(&self) -> u64 {
        self.1.as_ref().unwrap().addr().get()
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.1.take() {
            let freed = self.0.free(block);
            assert!(freed.is_ok() || std::thread::panicking(), "{freed:?}");
        }
    }
}

/// Allocates and frees memory inside a capture. The graph runs twice.
fn graph(objects: &Objects) -> Result<(), Failure> {
    let Objects {
        memory,
        streams: [a, _, c],
        ..
    } = objects;
    let ones = memory.upload(a, &[1u32; LEN])?;
    let mut sum = memory.zeros::<u32>(c, LEN)?;
    // The graph's first work waits for the work that wrote its input.
    c.memcpy_dtod(&ones, &mut sum)?;
    objects.check()?;
    let window = memory.prime(c, MIB / 4)?;
    let capture = Capture::begin(c)?;
    for _ in 0..2 {
        let mut scratch = memory.zeros::<u32>(c, LEN)?;
        objects.add_on(c, scratch.as_view_mut(), &ones)?;
        objects.add_on(c, sum.as_view_mut(), &scratch)?;
    }
    let graph = capture.end()?;
    window.close();
    graph.launch(c)?;
    graph.launch(c)?;
    assert_eq!(objects.read(c, &sum)?, [5; LEN]);
    drop(graph);
    drop(window);
    Ok(())
}
