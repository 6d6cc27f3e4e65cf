//! [`IdlePages`]: where a tick sends the spans that have been idle for long.

use std::ptr::NonNull;

use larder_core::small::{Pages, SizeClass, Span, SpanMemory};

use crate::os::Os;
use crate::process::PagesOf;

/// A process as the place where spans go that have been idle for long.
pub(super) struct IdlePages<O: Os>(pub(super) PagesOf<O>);

// SAFETY: the promises of PagesOf, whose answers these are.
unsafe impl<O: Os> Pages for IdlePages<O> {
    fn span_bytes(&self, class: SizeClass) -> usize {
        self.0.span_bytes(class)
    }

    fn alloc_span(&mut self, bytes: usize) -> Option<SpanMemory> {
        self.0.alloc_span(bytes)
    }

    unsafe fn free_span(&mut self, span: *mut Span) {
        // SAFETY: the caller's promise.
        unsafe { self.0.free_idle_span(span) };
    }

    fn page_bytes(&self) -> usize {
        self.0.page_bytes()
    }

    unsafe fn discard(&mut self, start: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.0.discard(start, bytes) };
    }

    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        self.0.span_of(block)
    }

    fn alloc_block(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.0.alloc_block(bytes, align)
    }

    unsafe fn free_block(&mut self, block: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.0.free_block(block) };
    }
}
