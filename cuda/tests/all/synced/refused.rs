//! A driver that refuses each call in turn.

use larder_cuda::synced::{CopyError, Head, HostMemory};
use larder_cuda::{DeviceAllocError, SyncedMemory};
use larder_cuda_abi::Code;

use crate::common::alone_and_clean;
use crate::common::refusal::{SWEEP, Sweep};
use crate::synced::{HEADS, LEN, Setup};

type Outcome = Result<(), CopyError<DeviceAllocError>>;

const ACTS: [&str; 8] = [
    "cpu",
    "cpu_mut",
    "gpu",
    "gpu_mut",
    "cpu_overwrite",
    "gpu_overwrite",
    "push",
    "pull",
];

fn act(setup: &Setup, memory: &mut SyncedMemory<'_, u8>, act: &str) -> Outcome {
    let done = match act {
        "cpu" => memory.cpu().map(drop),
        "cpu_mut" => memory.cpu_mut().map(drop),
        "gpu" => memory.gpu().map(drop),
        "gpu_mut" => memory.gpu_mut().map(drop),
        "cpu_overwrite" => memory.cpu_overwrite().map(drop),
        "gpu_overwrite" => memory.gpu_overwrite().map(drop),
        "push" => memory.push_async(&setup.other)?.wait(),
        "pull" => memory.pull_async(&setup.other)?.wait(),
        other => panic!("no act {other}"),
    };
    done.map_err(CopyError::Backend)
}

/// Each driver call on each path is refused once: the head and the ownership do not change, and no values are lost.
#[test]
fn sm_6_a_driver_that_refuses_leaves_everything_as_it_was() {
    let sweep = Sweep {
        codes: &[Code::NOT_PERMITTED],
        each_code: true,
        ..SWEEP
    };
    for (kind, act_name, head) in rows() {
        println!("kind {kind}, {act_name} in {head:?}");
        let copies = match head {
            Head::Host => ["push", "gpu", "gpu_mut"].contains(&act_name),
            Head::Device => ["pull", "cpu", "cpu_mut"].contains(&act_name),
            _ => false,
        };
        sweep.run(u64::from(copies), |refusal| {
            let setup = Setup::new();
            let mut memory = setup.in_state(&setup.kinds()[kind], head, 7);
            setup.context.synchronize().unwrap();
            let state = |memory: &SyncedMemory<'_, u8>| {
                (memory.head(), memory.owns_host(), memory.owns_device())
            };
            let before = state(&memory);
            let answer = refusal.around(|| act(&setup, &mut memory, act_name));
            let _ = setup.context.cudarc().check_err();
            if let Err(CopyError::Backend(_)) = answer {
                assert!(refusal.happened(), "{answer:?}");
                let after = state(&memory);
                // The copy is in progress if only the wait for its end was refused.
                let is_queued = ["push", "pull"].contains(&act_name);
                let under_way = after.0 == Head::Synced && is_queued;
                assert!(after == before || under_way, "{before:?} {after:?}");
                let _ = act(&setup, &mut memory, act_name);
            }
            // No values are lost, except those that were to be overwritten.
            let value = if head == Head::Uninitialized { 0 } else { 7 };
            let overwritten = [
                ("cpu_overwrite", Head::Host),
                ("gpu_overwrite", Head::Device),
            ];
            if !overwritten.contains(&(act_name, head)) {
                assert_eq!(memory.cpu().unwrap(), [value; LEN]);
            }
            drop(memory);
            setup.assert_nothing_lives();
        });
    }
}

fn rows() -> impl Iterator<Item = (usize, &'static str, Head)> {
    let acts = (0..3).flat_map(|kind| ACTS.map(|act| (kind, act)));
    acts.flat_map(|(kind, act)| HEADS.map(|head| (kind, act, head)))
}

#[test]
fn sm_6_a_full_device_is_an_error() {
    alone_and_clean(|_| {
        let setup = Setup::new();
        let mut memory = setup.make::<u8>(&HostMemory::Pageable, 2 << 30);
        let error = memory.gpu().unwrap_err();
        let is_memory = matches!(error, DeviceAllocError::Memory { .. });
        assert!(is_memory, "{error}");
        assert_eq!(memory.head(), Head::Uninitialized);
        assert!(!memory.owns_device());
    });
}
