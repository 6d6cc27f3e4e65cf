//! A driver that refuses at each step.

use larder_cuda::driver::Rule;
use larder_cuda::synced::{CopyError, Head};
use larder_cuda::{DeviceAllocError, SyncedMemory};
use larder_cuda_abi::Code;

use crate::common::alone_and_clean;
use crate::synced::Setup;

const LEN: usize = 300;

type Act = fn(&Setup, &mut SyncedMemory<'_, u8>) -> Result<(), CopyError<DeviceAllocError>>;

fn acts() -> [Act; 8] {
    let of = CopyError::<DeviceAllocError>::Backend;
    let _ = of;
    [
        |_, memory| memory.cpu().map(drop).map_err(CopyError::Backend),
        |_, memory| memory.cpu_mut().map(drop).map_err(CopyError::Backend),
        |_, memory| memory.gpu().map(drop).map_err(CopyError::Backend),
        |_, memory| memory.gpu_mut().map(drop).map_err(CopyError::Backend),
        |_, memory| memory.cpu_overwrite().map(drop).map_err(CopyError::Backend),
        |_, memory| memory.gpu_overwrite().map(drop).map_err(CopyError::Backend),
        |setup, memory| {
            let guard = memory.push_async(&setup.other)?;
            guard.wait().map_err(CopyError::Backend)
        },
        |setup, memory| {
            let guard = memory.pull_async(&setup.other)?;
            guard.wait().map_err(CopyError::Backend)
        },
    ]
}

fn in_state<'a>(setup: &Setup, kind: usize, head: Head) -> SyncedMemory<'a, u8> {
    let mut memory = setup.make(&setup.kinds()[kind], LEN);
    match head {
        Head::Uninitialized => {}
        Head::Host => memory.cpu_mut().unwrap().fill(7),
        Head::Device | Head::Synced => {
            memory.cpu_mut().unwrap().fill(7);
            memory.gpu_mut().unwrap();
            if head == Head::Synced {
                memory.cpu().unwrap();
            }
        }
    }
    memory
}

/// Each call of the driver, on each path: head and ownership stay, and it works the second time.
#[test]
fn sm_6_a_driver_that_refuses_leaves_everything_as_it_was() {
    alone_and_clean(|control| {
        let heads = [Head::Uninitialized, Head::Host, Head::Device, Head::Synced];
        let mut refusals = 0;
        for kind in 0..3 {
            for (number, act) in acts().into_iter().enumerate() {
                for head in heads {
                    for skip in 0.. {
                        let what = format!("kind {kind}, act {number}, {head:?}, call {skip}");
                        let setup = Setup::new();
                        let mut memory = in_state(&setup, kind, head);
                        setup.context.synchronize().unwrap();
                        let before = (memory.head(), memory.owns_host(), memory.owns_device());
                        let rule = Rule::any().after(skip).with(Code::NOT_PERMITTED);
                        control.reset_calls();
                        control.fail(rule).unwrap();
                        let answer = act(&setup, &mut memory);
                        let calls = control.calls(None);
                        control.clear_failures();
                        let _ = setup.context.cudarc().check_err();
                        if calls <= skip {
                            break;
                        }
                        refusals += 1;
                        if let Err(CopyError::Backend(_)) = answer {
                            let after = (memory.head(), memory.owns_host(), memory.owns_device());
                            // A copy whose end could not be waited for is under way.
                            let under_way = after.0 == Head::Synced && number >= 6;
                            assert!(after == before || under_way, "{what}: {before:?} {after:?}");
                            let _ = act(&setup, &mut memory);
                        }
                        // Nothing of what a side held is lost, but where it was to be overwritten.
                        let value = if head == Head::Uninitialized { 0 } else { 7 };
                        let overwritten = number == 4 && head == Head::Host
                            || number == 5 && head == Head::Device;
                        if !overwritten {
                            assert_eq!(memory.cpu().unwrap(), [value; LEN], "{what}");
                        }
                        drop(memory);
                        setup.assert_nothing_lives();
                    }
                }
            }
        }
        assert!(refusals > 0);
    });
}

/// Out of memory is a value.
#[test]
fn sm_6_a_full_device_is_an_error() {
    alone_and_clean(|_| {
        let setup = Setup::new();
        let pageable = &setup.kinds()[0];
        let mut memory = setup.make::<u8>(pageable, 2 << 30);
        let error = memory.gpu().unwrap_err();
        let is_memory = matches!(error, DeviceAllocError::Memory { .. });
        assert!(is_memory, "{error}");
        assert_eq!(memory.head(), Head::Uninitialized);
        assert!(!memory.owns_device());
    });
}
