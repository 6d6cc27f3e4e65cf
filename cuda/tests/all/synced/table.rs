//! The transition table on the mock: the calls, the next state and the bytes of every method in every state, with and
//! without a buffer on the other side.

use std::rc::Rc;

use larder_cuda::synced::{CopyError, Head, SyncedPair};

use crate::synced::HEADS;
use crate::synced::mock::{BYTES, Buffer, Log, Mock, Refused, pair};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Cpu,
    CpuMut,
    Gpu,
    GpuMut,
    SetCpu,
    SetGpu,
    Push,
    Pull,
}

const METHODS: [Method; 8] = [
    Method::Cpu,
    Method::CpuMut,
    Method::Gpu,
    Method::GpuMut,
    Method::SetCpu,
    Method::SetGpu,
    Method::Push,
    Method::Pull,
];

/// The value that [`in_state`] writes to every byte.
const VALUE: u8 = 7;
const ADOPTED: u8 = 9;

/// Returns a pair in the state `head`; with `both`, both sides have buffers already.
fn in_state(head: Head, both: bool) -> (SyncedPair<Mock>, Rc<Log>) {
    let (mut pair, log) = pair(false);
    if both {
        // Allocates both buffers without giving them values.
        pair.host_overwrite().unwrap();
        pair.device_overwrite().unwrap();
    }
    match head {
        Head::Uninitialized => {}
        Head::Host => pair.host_mut().unwrap().unwrap().bytes = [VALUE; BYTES],
        Head::Device => pair.device_mut().unwrap().unwrap().bytes = [VALUE; BYTES],
        Head::Synced => {
            pair.host_mut().unwrap().unwrap().bytes = [VALUE; BYTES];
            pair.device().unwrap();
        }
    }
    assert_eq!(pair.head(), head);
    log.take();
    (pair, log)
}

fn call(pair: &mut SyncedPair<Mock>, method: Method) -> Result<(), CopyError<Refused>> {
    let backend = CopyError::Backend;
    match method {
        Method::Cpu => pair.host().map(drop).map_err(backend),
        Method::CpuMut => pair.host_mut().map(drop).map_err(backend),
        Method::Gpu => pair.device().map(drop).map_err(backend),
        Method::GpuMut => pair.device_mut().map(drop).map_err(backend),
        Method::SetCpu => {
            pair.set_host(Buffer::foreign(1, ADOPTED));
            Ok(())
        }
        Method::SetGpu => {
            pair.set_device(Buffer::foreign(2, ADOPTED));
            Ok(())
        }
        Method::Push => {
            pair.push("stream")?;
            pair.settle().map_err(backend)
        }
        Method::Pull => {
            pair.pull("stream")?;
            pair.settle().map_err(backend)
        }
    }
}

/// Returns the calls and the next state; `None` if the method is refused. `*` marks an allocation or a free that is
/// made only where it is needed.
pub(super) fn expected(method: Method, head: Head) -> Option<(&'static [&'static str], Head)> {
    use Head::{Device, Host, Synced};
    let row: [Option<(&[&str], Head)>; 4] = match method {
        Method::Cpu => [
            Some((&["*alloc host", "zero host"], Host)),
            Some((&[], Host)),
            Some((&["*alloc host", "copy to host"], Synced)),
            Some((&[], Synced)),
        ],
        Method::CpuMut => [
            Some((&["*alloc host", "zero host"], Host)),
            Some((&[], Host)),
            Some((&["*alloc host", "copy to host"], Host)),
            Some((&[], Host)),
        ],
        Method::Gpu => [
            Some((&["*alloc device", "zero device"], Device)),
            Some((&["*alloc device", "copy to device"], Synced)),
            Some((&[], Device)),
            Some((&[], Synced)),
        ],
        Method::GpuMut => [
            Some((&["*alloc device", "zero device"], Device)),
            Some((&["*alloc device", "copy to device"], Device)),
            Some((&[], Device)),
            Some((&[], Device)),
        ],
        Method::SetCpu => [Some((&["*free host"], Host)); 4],
        Method::SetGpu => [Some((&["*free device"], Device)); 4],
        Method::Push => [
            None,
            Some((&["*alloc device", "push", "wait"], Synced)),
            None,
            None,
        ],
        Method::Pull => [
            None,
            None,
            Some((&["*alloc host", "pull", "wait"], Synced)),
            None,
        ],
    };
    row[HEADS.iter().position(|state| *state == head).unwrap()]
}

/// Returns the calls expected of a pair, including those marked `*` that are needed.
fn calls_of(pair: &SyncedPair<Mock>, calls: &'static [&'static str]) -> Vec<&'static str> {
    let needed = |name: &'static str| match name {
        "alloc host" => pair.host_buffer().is_none(),
        "alloc device" => pair.device_buffer().is_none(),
        "free host" => pair.host_buffer().is_some(),
        _ => pair.device_buffer().is_some(),
    };
    let calls = calls
        .iter()
        .filter_map(|call| match call.strip_prefix('*') {
            Some(name) => needed(name).then_some(name),
            None => Some(*call),
        });
    calls.collect()
}

/// Checks the contents of each side that has the newest values.
fn assert_values(pair: &mut SyncedPair<Mock>, value: u8, what: &str) {
    let head = pair.head();
    if matches!(head, Head::Host | Head::Synced) {
        let bytes = pair.host_buffer().unwrap().bytes;
        assert_eq!(bytes, [value; BYTES], "{what}: the host's");
    }
    if matches!(head, Head::Device | Head::Synced) {
        let bytes = pair.device_buffer().unwrap().bytes;
        assert_eq!(bytes, [value; BYTES], "{what}: the device's");
    }
}

/// Returns every method in every state, with and without a buffer on the other side.
fn rows() -> impl Iterator<Item = (Method, Head, bool)> {
    let states = HEADS.map(|head| [(head, false), (head, true)]).into_iter();
    let states = states.flatten();
    METHODS.into_iter().flat_map(move |method| {
        let states = states.clone();
        states.map(move |(head, both)| (method, head, both))
    })
}

#[test]
fn sm_1_every_method_in_every_state() {
    for row @ (method, head, both) in rows() {
        let (mut pair, log) = in_state(head, both);
        let Some((calls, after)) = expected(method, head) else {
            let error = call(&mut pair, method).unwrap_err();
            assert_eq!(error, CopyError::Head(head), "{row:?}");
            continue;
        };
        let calls = calls_of(&pair, calls);
        call(&mut pair, method).unwrap();
        assert_eq!(log.take(), calls, "{row:?}");
        assert_eq!(pair.head(), after, "{row:?}");
        let value = match (method, head) {
            (Method::SetCpu | Method::SetGpu, _) => ADOPTED,
            (_, Head::Uninitialized) => 0,
            _ => VALUE,
        };
        assert_values(&mut pair, value, &format!("{row:?}"));
    }
}

#[test]
fn sm_1_adopting_says_where_the_newest_values_were_and_leaves_the_other_side() {
    for head in HEADS {
        let (mut pair, _) = in_state(head, true);
        let device = pair.device_buffer().unwrap().bytes;
        assert_eq!(pair.set_host(Buffer::foreign(1, ADOPTED)), head);
        assert_eq!(pair.device_buffer().unwrap().bytes, device);
        let (mut pair, _) = in_state(head, true);
        let host = pair.host_buffer().unwrap().bytes;
        assert_eq!(pair.set_device(Buffer::foreign(2, ADOPTED)), head);
        assert_eq!(pair.host_buffer().unwrap().bytes, host);
    }
}

#[test]
fn sm_1_overwriting_copies_and_zeroes_nothing() {
    for head in HEADS {
        let (mut pair, log) = in_state(head, true);
        pair.host_overwrite().unwrap().unwrap().bytes = [1; BYTES];
        let left = match head {
            Head::Uninitialized | Head::Host => Head::Uninitialized,
            Head::Device | Head::Synced => Head::Device,
        };
        assert_eq!(pair.head(), left, "what was begun is nothing yet");
        pair.host_written();
        assert_eq!(pair.head(), Head::Host);
        assert_eq!(log.take(), [""; 0]);
        assert_values(&mut pair, 1, "the host's");

        let (mut pair, log) = in_state(head, true);
        pair.device_overwrite().unwrap().unwrap().bytes = [2; BYTES];
        let left = match head {
            Head::Uninitialized | Head::Device => Head::Uninitialized,
            Head::Host | Head::Synced => Head::Host,
        };
        assert_eq!(pair.head(), left);
        pair.device_written();
        assert_eq!(log.take(), [""; 0]);
        assert_values(&mut pair, 2, "the device's");
    }
    // The values that only the overwritten side had are lost, so it reads as zeros.
    let (mut pair, log) = in_state(Head::Host, false);
    pair.host_overwrite().unwrap();
    assert_eq!(pair.host().unwrap().unwrap().bytes, [0; BYTES]);
    assert_eq!(log.take(), ["zero host"]);
}

#[test]
fn sm_4_dropping_frees_what_is_owned() {
    for (host, device) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut pair, log) = pair(false);
        if host {
            pair.host_mut().unwrap();
        } else {
            pair.set_host(Buffer::foreign(1, ADOPTED));
        }
        if device {
            pair.device().unwrap();
        } else {
            pair.set_device(Buffer::foreign(2, ADOPTED));
        }
        log.take();
        drop(pair);
        let mut freed = log.take();
        freed.sort_unstable();
        let mut expected = Vec::new();
        expected.extend(device.then_some("free device"));
        expected.extend(host.then_some("free host"));
        assert_eq!(freed, expected);
    }
}

#[test]
fn sm_5_a_push_that_is_refused_changes_nothing() {
    for row @ (method, head, both) in rows() {
        if expected(method, head).is_some() {
            continue;
        }
        let (mut pair, log) = in_state(head, both);
        let before = sides(&pair);
        assert!(call(&mut pair, method).is_err(), "{row:?}");
        assert_eq!((pair.head(), sides(&pair)), (head, before), "{row:?}");
        assert_eq!(log.take(), [""; 0], "{row:?}");
    }
}

type Side = Option<([u8; BYTES], u32)>;

fn sides(pair: &SyncedPair<Mock>) -> (Side, Side) {
    let of = |buffer: Option<&Buffer>| buffer.map(|buffer| (buffer.bytes, buffer.id));
    (of(pair.host_buffer()), of(pair.device_buffer()))
}

#[test]
fn sm_6_a_backend_that_fails_at_any_step_changes_nothing() {
    for row @ (method, head, both) in rows() {
        for skip in 0.. {
            let what = format!("{row:?}, call {skip}");
            let (mut pair, log) = in_state(head, both);
            let before = sides(&pair);
            log.refuse(skip);
            let answer = call(&mut pair, method);
            if !log.refused() {
                break;
            }
            let error = answer.unwrap_err();
            if error == CopyError::Backend(Refused("wait")) {
                // The copy is still in progress; the next use waits again.
                assert_eq!(pair.head(), Head::Synced, "{what}");
                pair.settle().unwrap();
                continue;
            }
            assert!(matches!(error, CopyError::Backend(_)), "{what}");
            assert_eq!((pair.head(), sides(&pair)), (head, before), "{what}");
            // The memory that the call allocated is freed.
            let calls = log.take();
            let count = |start: &str| calls.iter().filter(|call| call.starts_with(start)).count();
            assert_eq!(count("alloc"), count("free"), "{what}: {calls:?}");
            if let Some((_, after)) = expected(method, head) {
                call(&mut pair, method).unwrap();
                assert_eq!(pair.head(), after, "{what}");
            }
        }
    }
}

#[test]
fn sm_7_a_pair_of_no_bytes_never_touches_the_backend() {
    for method in METHODS {
        let (mut pair, log) = pair(true);
        if matches!(method, Method::SetCpu | Method::SetGpu) {
            continue;
        }
        for first in [Method::Cpu, Method::CpuMut, Method::Gpu, Method::GpuMut] {
            call(&mut pair, first).unwrap();
            let _ = call(&mut pair, method);
        }
        assert!(pair.host().unwrap().is_none());
        assert!(pair.device().unwrap().is_none());
        assert_eq!(log.take(), [""; 0], "{method:?}");
    }
}

#[test]
fn a_copy_under_way_is_waited_for_by_the_next_use() {
    for method in METHODS {
        let (mut pair, log) = in_state(Head::Host, true);
        pair.push("stream").unwrap();
        assert_eq!(pair.head(), Head::Synced);
        log.take();
        let waits = match method {
            Method::Cpu | Method::CpuMut | Method::Gpu | Method::GpuMut => {
                call(&mut pair, method).unwrap();
                true
            }
            // A copy is refused here, and a replaced buffer is kept until its copy has ended.
            _ => {
                let _ = call(&mut pair, method);
                false
            }
        };
        assert_eq!(log.take().contains(&"wait"), waits, "{method:?}");
    }
}
