//! Reads, writes and fills of device memory, compared with a plain copy.

use larder_core::{
    AccessError, Addr, AddrRange, BlockAllocator, EventNumber, MemoryAccess, Pattern, StreamId,
    StreamPoint,
};
use larder_core::{AllocError, FreeError, Request};
use larder_cuda::{DeviceAllocError, DeviceConfig};

use super::{Setup, alloc, read, write};
use crate::common::{MIB, alone_and_clean, apart, driver, fill};

const PATTERNS: [Pattern; 8] = [
    Pattern::of_u8(0x5a),
    Pattern::of_u16(0x1234),
    Pattern::of_u16(0x3333),
    Pattern::F32_NAN,
    Pattern::I32_MIN,
    Pattern::of_u32(0x0102_0102),
    Pattern::F64_NAN,
    Pattern::of_u64(0x0102_0304_0506_0708),
];

#[test]
fn a_fill_writes_its_range_from_any_start_and_nothing_else() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let (memory, access) = setup.on_stream();
        let block = alloc(&memory, 4096);
        let base = block.addr().get();
        let lengths = [
            1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100, 255, 1024, 1027, 3000,
        ];
        for (seed, pattern) in PATTERNS.into_iter().enumerate() {
            control.schedule_deferred(seed as u64);
            for start in 0..9 {
                for bytes in lengths {
                    fill(&setup.stream, base, 4096, 0xee);
                    let range = AddrRange::new(Addr::new(base + 16 + start), bytes).unwrap();
                    access.fill(StreamId::MAIN, range, pattern).unwrap();
                    let found = read(&access, base, 4096);
                    let first = 16 + start;
                    let expected = (0..4096u64).map(|offset| {
                        let inside = (first..first + bytes).contains(&offset);
                        if inside {
                            pattern.at(offset - first)
                        } else {
                            0xee
                        }
                    });
                    let expected: Vec<u8> = expected.collect();
                    assert!(found == expected, "{pattern:?}, {bytes} bytes from {start}");
                }
            }
            control.schedule_eagerly();
        }
        memory.free(block).unwrap();
    });
}

#[test]
fn a_fill_takes_few_calls_and_does_not_copy_from_the_host() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let (memory, access) = setup.on_stream();
        let block = alloc(&memory, MIB);
        for (pattern, max) in PATTERNS.into_iter().zip([1, 2, 1, 4, 4, 3, 25, 25]) {
            let before = (
                control.calls(None),
                control.calls(Some("cuMemcpyHtoDAsync_v2")),
            );
            // The range ends inside the pattern's last value.
            let range = AddrRange::new(block.addr(), MIB - 1).unwrap();
            access.fill(StreamId::MAIN, range, pattern).unwrap();
            let calls = control.calls(None) - before.0;
            assert_eq!(control.calls(Some("cuMemcpyHtoDAsync_v2")), before.1);
            assert_eq!(control.calls(Some("cuStreamSynchronize")), 0);
            // Two more calls ask for the current context and whether the stream is being captured.
            assert!(calls <= max + 2, "{pattern:?}: {calls} calls");
        }
        memory.free(block).unwrap();
    });
}

#[test]
fn bytes_written_are_read_back_whatever_their_length() {
    let _turn = apart();
    let setup = Setup::new();
    let (memory, access) = setup.on_stream();
    let block = alloc(&memory, MIB);
    for bytes in [
        0,
        1,
        1000,
        (64 << 10) - 1,
        64 << 10,
        (64 << 10) + 1,
        300_000,
    ] {
        let values: Vec<u8> = (0..bytes)
            .map(|at: u32| (at.wrapping_mul(31) >> 3) as u8)
            .collect();
        write(&access, block.addr().get() + 3, &values);
        let found = read(&access, block.addr().get() + 3, u64::from(bytes));
        assert!(found == values, "{bytes} bytes");
    }
    memory.free(block).unwrap();
}

#[test]
fn addresses_of_others_and_other_streams_are_refused() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let (memory, access) = setup.on_stream();
        let other = StreamId::new(1);
        let mut byte = [0];
        let calls = control.calls(None);
        for addr in [0, 4096, u64::MAX] {
            let outcome = access.read(StreamId::MAIN, Addr::new(addr), &mut byte);
            assert_eq!(outcome, Err(AccessError::OutOfRange), "{addr:#x}");
        }
        assert_eq!(control.calls(None), calls, "nobody was asked");
        let block = alloc(&memory, 100);
        let far = AddrRange::new(block.addr(), 1 << 50).unwrap();
        let outcome = access.fill(StreamId::MAIN, far, Pattern::F32_NAN);
        assert_eq!(outcome, Err(AccessError::OutOfRange));
        let outcome = access.write(other, block.addr(), &byte);
        assert_eq!(outcome, Err(AccessError::OtherStream));
        let point = |stream_id| StreamPoint {
            stream: stream_id,
            event: EventNumber::new(7),
        };
        assert_eq!(access.wait(StreamId::MAIN, point(StreamId::MAIN)), Ok(()));
        let refused = Err(AccessError::OtherStream);
        assert_eq!(access.wait(StreamId::MAIN, point(other)), refused);
        assert_eq!(access.wait(other, point(StreamId::MAIN)), refused);
        let request = Request::new(100).on(other);
        assert_eq!(memory.alloc(&request), Err(AllocError::OtherStream));
        let rejected = memory.free_after(block, point(other)).unwrap_err();
        assert_eq!(rejected.error, FreeError::OtherStream);
        memory
            .free_after(rejected.value, point(StreamId::MAIN))
            .unwrap();
        assert_eq!(memory.stats().live_bytes, 0);
    });
}

#[test]
fn a_refusal_keeps_its_numbers_and_the_drivers_words() {
    alone_and_clean(|_| {
        let setup = Setup::with_config(DeviceConfig::with_budget(8 * MIB));
        let (memory, _) = setup.on_stream();
        assert_eq!(memory.last_error(), None);
        let outcome = memory.alloc(&Request::new(9 * MIB));
        let Err(AllocError::OutOfMemory(out)) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!((out.requested_bytes, out.limit_bytes), (9 * MIB, 8 * MIB));
        let error = memory.last_error();
        assert!(
            matches!(error, Some(DeviceAllocError::Memory { .. })),
            "{error:?}"
        );
        assert_eq!(memory.alloc(&Request::new(0)), Err(AllocError::ZeroSize));
        assert!(driver().stand_in().is_some());
    });
}
