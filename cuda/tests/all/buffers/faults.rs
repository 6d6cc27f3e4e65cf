//! A driver that refuses calls: no memory is lost or reused too early, and the program gets an error if work could not
//! be ordered.

use larder_cuda::driver::Rule;
use larder_cuda_abi::Code;

use super::Setup;
use crate::common::alone_and_clean;
use crate::common::refusal::DEFERRED_SWEEP;

const LEN: usize = 400;

/// Each driver call of a program is refused once: the program computes the right result or gets an error.
#[test]
fn a_refused_call_is_heard_of_or_made_good() {
    DEFERRED_SWEEP.run(10, |refusal| {
        let setup = Setup::new(3);
        let [a, b, c] = [0, 1, 2].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        let copies = || -> Result<Vec<u8>, Box<dyn std::error::Error>> {
            let ones = memory.upload(a, &[1u8; LEN])?;
            let mut buffer = memory.zeros::<u8>(a, LEN)?;
            let mut at_b = memory.zeros::<u8>(b, LEN)?;
            let mut at_c = memory.zeros::<u8>(c, LEN)?;
            b.memcpy_dtod(&ones, &mut buffer)?;
            c.memcpy_dtod(&buffer, &mut at_c)?;
            a.memset_zeros(&mut buffer)?;
            b.memcpy_dtod(&at_c, &mut at_b)?;
            let bytes = c.clone_dtoh(&at_b)?;
            setup.context.cudarc().check_err()?;
            Ok(bytes)
        };
        refusal.heard_of(&setup.context, copies, &[1; LEN]);
        // In the eager schedule, the events that the release records are complete at once.
        refusal.control.schedule_eagerly();
        memory.release(u64::MAX);
        assert_eq!(memory.stats().live_bytes, 0, "memory is lost");
    });
}

/// If an event cannot be created, recorded or waited for, the host waits instead.
#[test]
fn the_host_waits_where_no_event_can_be_had() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let ones = setup.memory.upload(a, &[1u8; LEN]).unwrap();
        for function in ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"] {
            for seed in 0..50 {
                let mut buffer = setup.memory.zeros::<u8>(a, LEN).unwrap();
                let mut copy = setup.memory.zeros::<u8>(b, LEN).unwrap();
                setup.context.synchronize().unwrap();
                control.schedule_deferred(seed);
                control
                    .fail(Rule::of(function).times(u64::MAX).with(Code::NOT_PERMITTED))
                    .unwrap();
                a.memcpy_dtod(&ones, &mut buffer).unwrap();
                b.memcpy_dtod(&buffer, &mut copy).unwrap();
                control.clear_failures();
                assert_eq!(b.clone_dtoh(&copy).unwrap(), [1; LEN]);
                control.schedule_eagerly();
                assert_eq!(setup.context.cudarc().check_err(), Ok(()));
            }
        }
        assert_eq!(control.findings(), Vec::<String>::new());
    });
}

#[test]
fn a_buffer_is_free_once_every_stream_has_passed() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let mut copy = setup.memory.zeros::<u8>(b, LEN).unwrap();
        control.schedule_deferred(1);
        let buffer = setup.memory.upload(a, &[1u8; LEN]).unwrap();
        b.memcpy_dtod(&buffer, &mut copy).unwrap();
        let live = setup.memory.stats().live_bytes;
        drop(buffer);
        assert_eq!(setup.memory.stats().live_bytes, live, "in use on `b`");
        setup.context.synchronize().unwrap();
        setup.memory.release(0);
        assert!(setup.memory.stats().live_bytes < live);
        drop(copy);
        assert_eq!(setup.memory.stats().live_bytes, 0);
        control.schedule_eagerly();
    });
}
