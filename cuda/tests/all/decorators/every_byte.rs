//! A memset on the stream changes one byte at a time: each change of a guard is found, and no change of the block is.

use larder_core::decorate::{CheckError, GuardConfig, Guarded, Which};
use larder_core::{Align, BlockAllocator, Request};

use super::Setup;
use crate::common::{alone_and_clean, fill};

#[test]
fn f7_every_changed_byte_of_the_guards_is_found_and_none_of_the_block() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        let (memory, access) = setup.on_stream();
        let guarded = Guarded::new(&memory, &access, GuardConfig::new(), 4).unwrap();
        let cases = [
            (1, 1),
            (3, 8),
            (100, 1),
            (211, 32),
            (224, 256),
            (257, 16),
            (600, 512),
        ];
        for (seed, (bytes, align)) in cases.into_iter().enumerate() {
            if seed % 2 == 1 {
                control.schedule_deferred(seed as u64);
            }
            let align = Align::new(align).unwrap();
            let block = guarded.alloc(&Request::new(bytes).aligned(align));
            let block = block.unwrap().block;
            let granted = guarded.granted_bytes(&block).unwrap();
            let front = align.bytes().max(16);
            for offset in 0..granted {
                let at = block.addr().get() - front + offset;
                let inside = (front..front + bytes).contains(&offset);
                let was = if offset < front { 0xab } else { 0xcd };
                // Flips one bit, chosen by the offset.
                let value = was ^ (1 << (offset % 8));
                fill(&setup.stream, at, 1, value);
                match guarded.check(&block) {
                    Ok(()) => assert!(inside, "{bytes} bytes at {align:?}, offset {offset}"),
                    Err(CheckError::Damaged(damage)) => {
                        let which = if offset < front {
                            Which::Front
                        } else {
                            Which::Tail
                        };
                        let own = offset as i64 - front as i64;
                        assert!(!inside, "{damage}");
                        assert_eq!((damage.which, damage.offset), (which, own));
                        assert_eq!((damage.expected, damage.found), (was, value));
                        fill(&setup.stream, at, 1, was);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(matches!(guarded.free_checked(block, None), Ok(None)));
            control.schedule_eagerly();
        }
    });
}
