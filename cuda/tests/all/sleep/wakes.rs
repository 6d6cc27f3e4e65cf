//! A sleep is refused before anything is copied if the host has no room; a sleeping allocator refuses requests.

use larder_core::Request;
use larder_cuda::driver::Rule;
use larder_cuda::driver::abi::Code;
use larder_cuda::{DeviceAllocError, SleepError, StreamAllocator};

use crate::common::{MIB, alone_and_clean};
use crate::sleep::{Rig, arenas};

/// Linux promises more memory than it has, and kills a process that uses all of it.
#[cfg(target_os = "linux")]
#[test]
fn what_the_host_has_no_memory_for_is_refused_before_it_is_copied() {
    alone_and_clean(|control| {
        let said = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = said.split_whitespace().nth(1).unwrap();
        let bytes = total.parse::<u64>().unwrap() * 1024;
        control.reset(2, 2 * bytes);
        let rig = Rig::new(control, arenas());
        let block = rig.memory.alloc(&rig.streams[0], bytes).unwrap();
        let pins = Rule::of("cuMemHostAlloc").times(u64::MAX);
        control.fail(pins.with(Code::OUT_OF_MEMORY)).unwrap();
        // A copy would fail the sleep with another error.
        let copies = Rule::of("cuMemcpyDtoHAsync_v2").times(u64::MAX);
        control.fail(copies.with(Code::UNKNOWN)).unwrap();
        let slept = rig.memory.sleep().unwrap_err();
        control.clear_failures();
        assert!(matches!(slept, SleepError::Host { .. }), "{slept}");
        assert!(!rig.memory.is_asleep());
        rig.memory.free(&rig.streams[0], block).unwrap();
    });
}

#[test]
fn asleep_nothing_is_given_to_a_request_either() {
    alone_and_clean(|control| {
        let rig = Rig::new(control, arenas());
        rig.memory.sleep().unwrap();
        for bytes in [100, MIB, 9 * MIB] {
            let given = rig.memory.alloc_as(&rig.streams[0], &Request::new(bytes));
            assert_eq!(given.unwrap_err(), DeviceAllocError::Asleep);
        }
    });
}
