//! Texts that C keeps pointers to, and the list of what exists.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use larder_cuda_abi::Code;

use crate::driver::Driver;
use crate::space::Kind;

/// Name and meaning of a code, as C strings that stay.
pub(crate) fn c_texts(code: Code) -> Option<(&'static CStr, &'static CStr)> {
    static TEXTS: OnceLock<BTreeMap<Code, (CString, CString)>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let text = |text: Option<&str>| CString::new(text.unwrap_or_default()).unwrap_or_default();
        Code::ALL
            .iter()
            .map(|code| (*code, (text(code.name()), text(code.meaning()))))
            .collect()
    });
    let (name, meaning) = texts.get(&code)?;
    Some((name, meaning))
}

impl Driver {
    /// What exists: lines of kind, count, bytes.
    pub(crate) fn alive_text(&self) -> String {
        let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        let mut count = |kind, bytes| {
            let (count, sum) = counts.entry(kind).or_default();
            *count += 1;
            *sum += bytes;
        };
        for block in self.space.blocks.values() {
            match &block.kind {
                Kind::Device => count("device", block.bytes),
                Kind::Mapped { .. } => count("mapping", block.bytes),
                Kind::Pinned { .. } => count("pinned", block.bytes),
                Kind::Registered { .. } => count("registered", block.bytes),
                Kind::Managed(_) => count("managed", block.bytes),
                // It belongs to its module.
                Kind::Module => {}
                Kind::Pooled(pooled) => {
                    if !pooled.freed {
                        count("pooled", block.bytes);
                    }
                }
            }
        }
        for bytes in self.space.handle_sizes() {
            count("handle", bytes);
        }
        for bytes in self.space.vmm.reservations.values() {
            count("reservation", *bytes);
        }
        for (_, stream) in self.streams.iter() {
            if !stream.is_hidden {
                count("stream", 0);
            }
        }
        for _ in self.events.iter() {
            count("event", 0);
        }
        for (_, pool) in self.pools.table.iter() {
            if !pool.is_default && !pool.is_destroyed() {
                count("pool", pool.reserved.now);
            }
        }
        for (_, graph) in self.graphs.iter() {
            if !graph.capturing {
                count("graph", 0);
            }
        }
        for _ in self.execs.iter() {
            count("exec", 0);
        }
        for _ in self.modules.iter() {
            count("module", 0);
        }
        for _ in self.contexts.iter() {
            count("context", 0);
        }
        counts
            .iter()
            .map(|(kind, (count, bytes))| format!("{kind} {count} {bytes}\n"))
            .collect()
    }
}
