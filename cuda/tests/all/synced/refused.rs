//! A driver that refuses each call in turn.

use cudarc::driver::sys;
use larder_cuda::synced::{CopyError, Head, HostMemory};
use larder_cuda::{Context, DeviceAllocError, SyncedMemory};
use larder_cuda_abi::Code;

use crate::common::alone_and_clean;
use crate::common::graph::Graph;
use crate::common::refusal::{SWEEP, Sweep};
use crate::synced::{HEADS, LEN, Setup, each_kind, write_on};

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

/// A copy that a graph makes when it is launched, if ever, cannot count as made.
#[test]
fn a_copy_in_a_capture_is_refused_and_loses_nothing() {
    let capture = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    for (name, head, on_other) in [
        ("gpu", Head::Host, false),
        ("gpu_mut", Head::Host, false),
        ("push", Head::Host, true),
        ("cpu", Head::Device, false),
        ("cpu_mut", Head::Device, false),
        ("pull", Head::Device, true),
    ] {
        each_kind(|_, setup, kind| {
            // Both sides have memory, with other values in the older one.
            let mut memory = setup.in_state(kind, Head::Synced, 1);
            match head {
                Head::Host => memory.cpu_mut().unwrap().fill(2),
                _ => write_on(&setup.other, &mut memory, 2),
            }
            let stream = if on_other {
                &setup.other
            } else {
                &setup.stream
            };
            stream.begin_capture(capture).unwrap();
            let refused = act(setup, &mut memory, name);
            let capturing = Err(CopyError::Backend(DeviceAllocError::Capturing));
            assert_eq!(refused, capturing, "{name}");
            drop(Graph::end_capture(stream).unwrap());
            assert_eq!(memory.head(), head, "{name}");
            assert_eq!(act(setup, &mut memory, name), Ok(()), "{name}");
            assert_eq!(setup.seen(&mut memory), [2; LEN], "{name}");
            assert_eq!(memory.cpu().unwrap(), [2; LEN], "{name}");
        });
    }
}

#[test]
fn a_stream_of_another_device_takes_no_copy() {
    each_kind(|_, setup, kind| {
        let foreign = Context::new(1).unwrap().cudarc().new_stream().unwrap();
        let refused = Err(CopyError::Backend(DeviceAllocError::Stream));
        let mut memory = setup.in_state(kind, Head::Host, 3);
        assert_eq!(memory.push_async(&foreign).map(drop), refused);
        assert_eq!(memory.head(), Head::Host);
        let mut memory = setup.in_state(kind, Head::Device, 3);
        assert_eq!(memory.pull_async(&foreign).map(drop), refused);
        assert_eq!(memory.head(), Head::Device);
        assert_eq!(memory.cpu().unwrap(), [3; LEN]);
    });
}

#[test]
fn asleep_nothing_is_copied() {
    each_kind(|_, setup, kind| {
        let mut memory = setup.in_state(kind, Head::Device, 4);
        setup.context.synchronize().unwrap();
        setup.device.sleep().unwrap();
        assert_eq!(memory.cpu().map(drop), Err(DeviceAllocError::Asleep));
        assert_eq!(memory.head(), Head::Device);
        setup.device.wake().unwrap();
        assert_eq!(memory.cpu().unwrap(), [4; LEN]);
    });
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
