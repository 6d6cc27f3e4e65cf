//! The stacks of a report, with what finds the source of each function: its file and line if they
//! are known, otherwise the loaded file and the offset in it, as `addr2line` takes them.

use core::fmt::{self, Write};

use super::history::Here;
use crate::os::stack::{CodeLocation, place_of};
use crate::text::Text;

/// Writes the functions of a stack, beginning with the allocator's caller.
pub(super) fn write_frames(here: &Here, text: &mut Text) -> fmt::Result {
    let count = here.frames().count();
    if count == 0 {
        return text.write_str("    no stack\n");
    }
    #[cfg(feature = "heap-profile")]
    if let Some(written) = named::write(here, text) {
        return written;
    }
    let inner = here
        .frames()
        .take_while(|&frame| is_in_library(frame))
        .count();
    here.frames()
        .skip(inner % count)
        .try_for_each(|frame| write_frame(frame, text))
}

/// Returns whether a frame belongs to the library that replaces malloc, which has no functions of
/// the program.
fn is_in_library(frame: usize) -> bool {
    let Some(CodeLocation { file, .. }) = place_of(frame - 1) else {
        return false;
    };
    let name = file.to_bytes().rsplit(|&byte| byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"liblarder.so"))
}

/// Writes a frame whose function is known only if its file exports it.
fn write_frame(frame: usize, text: &mut Text) -> fmt::Result {
    // The call instruction ends at the return address.
    let call = frame - 1;
    write!(text, "    {call:#x}")?;
    if let Some(CodeLocation {
        file,
        offset,
        function,
    }) = place_of(call)
    {
        write!(text, " {}+{offset:#x}", file.to_str().unwrap_or("?"))?;
        if let Some(function) = function {
            write!(text, " {}", function.to_str().unwrap_or("?"))?;
        }
    }
    text.write_str("\n")
}

/// The functions of a stack with the names of the debug information.
#[cfg(feature = "heap-profile")]
mod named {
    use std::env::current_dir;
    use std::path::Path;

    use super::{CodeLocation, Here, Text, Write, fmt, place_of, write_frame};
    use crate::observe::profile::{NamedCall, calls_at};
    use crate::thread::with_local;

    /// Maximum number of columns of a line, unless a path is longer.
    const COLUMNS: usize = 100;
    /// Maximum number of characters of a name; generic functions can have long ones.
    const MAX_NAME: usize = COLUMNS - 4;

    /// A function, if its name is known, and the frame in which it runs.
    struct Call {
        frame: usize,
        function: Option<NamedCall>,
    }

    /// Writes the program's functions of a stack. Allocates to look up their names, so returns
    /// `None` if a lookup is under way.
    pub(super) fn write(here: &Here, text: &mut Text) -> Option<fmt::Result> {
        // SAFETY: called from the verbs, which do not use the thread's part here.
        if unsafe { with_local(|local| local.set_walking(true)) } {
            return None;
        }
        let calls: Vec<Call> = here.frames().flat_map(calls_of).collect();
        let written = program_of(&calls)
            .iter()
            .try_for_each(|call| call.write(text));
        drop(calls);
        // SAFETY: called from the verbs, which do not use the thread's part here.
        unsafe { with_local(|local| local.set_walking(false)) };
        Some(written)
    }

    /// Returns the functions of a frame, into the last of which the others are inlined.
    fn calls_of(frame: usize) -> Vec<Call> {
        let mut functions: Vec<_> = calls_at(frame).into_iter().map(Some).collect();
        if functions.is_empty() {
            functions.push(None);
        }
        let with_frame = |function| Call { frame, function };
        functions.into_iter().map(with_frame).collect()
    }

    /// Returns a stack without the functions of the allocator and the standard library at its inner
    /// end, and without those that start a thread at its outer end. Returns the whole stack if
    /// nothing else is there.
    fn program_of(calls: &[Call]) -> &[Call] {
        let is_start = |call: &Call| call.has_name("__rust_begin_short_backtrace");
        let is_ours = |call: &Call| !call.is_library();
        let is_main = |call: &Call| {
            call.function
                .as_ref()
                .is_some_and(|call| call.name == "main")
        };
        let last = match calls.iter().position(is_start) {
            Some(start) => calls.iter().take(start).rposition(is_ours),
            None => calls.iter().rposition(is_main),
        };
        let (first, end) = (
            calls.iter().position(is_ours),
            last.map_or(calls.len(), |last| last + 1),
        );
        let ours = first.and_then(|first| calls.get(first..end));
        ours.filter(|ours| !ours.is_empty()).unwrap_or(calls)
    }

    impl Call {
        fn has_name(&self, part: &str) -> bool {
            let function = self.function.as_ref();
            function.is_some_and(|function| function.name.contains(part))
        }

        /// Returns whether the function is the allocator's or the standard library's.
        fn is_library(&self) -> bool {
            let Some(function) = &self.function else {
                return false;
            };
            // A name may lack its path if the file is known.
            let is_std = match function.file.as_deref().and_then(Path::to_str) {
                Some(file) => ["/rustc/", "/rust/deps/", "/rustlib/src/rust/"]
                    .iter()
                    .any(|part| file.contains(part)),
                None => is_name_of_std(&function.name),
            };
            is_std || function.is_in_allocator()
        }

        fn write(&self, text: &mut Text) -> fmt::Result {
            let Some(NamedCall { name, file, line }) = &self.function else {
                return write_frame(self.frame, text);
            };
            if let (Some(file), Some(line)) = (file, line) {
                let file = shortened(file);
                return write_call(name, format!("{file}:{line}"), text);
            }
            match place_of(self.frame - 1) {
                Some(CodeLocation { file, offset, .. }) => {
                    let file = file.to_str().unwrap_or("?");
                    write_call(name, format!("{file}+{offset:#x}"), text)
                }
                None => write_frame(self.frame, text),
            }
        }
    }

    /// Returns whether a function with this name is the standard library's: `std::f`, `<std::T as
    /// Trait>::f` or `<T as std::Trait>::f`.
    fn is_name_of_std(name: &str) -> bool {
        let is_std = |path: &str| {
            let path = path.trim_start_matches(['<', '&', '[', '(']);
            let path = path.trim_start_matches("mut ").trim_start_matches("dyn ");
            ["core::", "alloc::", "std::", "__rust"]
                .iter()
                .any(|start| path.starts_with(start))
        };
        match name
            .strip_prefix('<')
            .and_then(|name| name.split_once(" as "))
        {
            Some((of, as_trait)) if !of.contains("::") => is_std(as_trait),
            _ => is_std(name),
        }
    }

    /// Returns a path from the current directory, from the folder of downloaded packages, or from
    /// that of the standard library.
    fn shortened(file: &Path) -> String {
        let here = current_dir().ok();
        let inside = here.and_then(|here| file.strip_prefix(here).ok());
        let text = inside.unwrap_or(file).to_string_lossy();
        // A folder named by a hash follows.
        let parts = ["/registry/src/", "/rustc/"].iter();
        let rest = parts.filter_map(|part| text.split_once(part)?.1.split_once('/'));
        rest.map(|(_, rest)| rest)
            .next()
            .unwrap_or(&text)
            .to_owned()
    }

    /// Writes a function and its place, in two lines if one is too short.
    fn write_call(name: &str, place: String, text: &mut Text) -> fmt::Result {
        let columns = "     at ".len() + name.chars().count() + place.chars().count();
        match columns <= COLUMNS {
            true => writeln!(text, "    {name} at {place}"),
            false => writeln!(text, "    {name:.MAX_NAME$}\n      at {place}"),
        }
    }
}
