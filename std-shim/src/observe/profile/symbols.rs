//! [`Symbol`]: a function and line of the program, looked up at an address of its code.

use std::ffi::c_void;
use std::path::{Path, PathBuf};

/// A function at a return address, and the place of its call in the source.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NamedCall {
    pub(crate) name: String,
    pub(crate) file: Option<PathBuf>,
    pub(crate) line: Option<u32>,
}

/// A place in the program's code.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Symbol {
    Call(NamedCall),
    /// A return address in a function without a name.
    Address(usize),
}

impl NamedCall {
    /// Returns whether the function is the allocator's, not a caller's. Compares the source file if
    /// the debug information has one, since the function's name may lack its path.
    pub(crate) fn is_in_allocator(&self) -> bool {
        let sources = file!().strip_suffix("observe/profile/symbols.rs");
        let file = self.file.as_deref().and_then(Path::to_str).zip(sources);
        file.is_some_and(|(file, sources)| file.contains(sources)) || is_allocator(&self.name)
    }
}

impl Symbol {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Call(call) => call.name.clone(),
            Self::Address(frame) => format!("{frame:#x}"),
        }
    }

    fn is_allocator(&self) -> bool {
        matches!(self, Self::Call(call) if is_allocator(&call.name))
    }
}

/// Returns the functions at a return address, more than one where calls were inlined, the innermost
/// first.
pub(crate) fn calls_at(frame: usize) -> Vec<NamedCall> {
    let mut calls = Vec::new();
    // Looks up the byte before it, where the call ends.
    let frame = std::ptr::without_provenance_mut::<c_void>(frame);
    backtrace::resolve(frame, |symbol| {
        calls.extend(symbol.name().map(|name| NamedCall {
            name: format!("{name:#}"),
            file: symbol.filename().map(Path::to_owned),
            line: symbol.lineno(),
        }));
    });
    calls
}

/// Returns the functions at a return address like [`calls_at`], or the address if they have no name.
pub(super) fn symbols_of(frame: usize) -> Vec<Symbol> {
    let calls = calls_at(frame).into_iter();
    let mut symbols: Vec<Symbol> = calls.map(Symbol::Call).collect();
    if symbols.is_empty() {
        symbols.push(Symbol::Address(frame));
    }
    symbols
}

/// Returns whether a function is the allocator's, not a caller's.
fn is_allocator(name: &str) -> bool {
    ["larder::", "<larder::", "__rust", "__rg_", "backtrace::"]
        .iter()
        .any(|start| name.starts_with(start))
        || name.contains("::__rust_")
}

/// Returns a stack, innermost first, without the allocator's own functions.
pub(super) fn outside_allocator(mut stack: Vec<&Symbol>) -> Vec<&Symbol> {
    // Only frames near the allocation are searched, because a program may call this library further
    // out.
    let inner = stack
        .iter()
        .take(24)
        .rposition(|symbol| symbol.is_allocator());
    stack.drain(..inner.map_or(0, |place| place + 1));
    stack
}
