//! Refuses the calls that are not allowed during a capture; each such call invalidates the capture.

use larder_cuda_abi::Code;
use larder_cuda_abi::constants::{CAPTURE_MODE_GLOBAL, CAPTURE_MODE_RELAXED};

use super::{Capture, CaptureId};
use crate::driver::SimDriver;
use crate::thread;

/// Rules that decide which calls are unsafe while a stream is being captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum CaptureRules {
    /// The calls that the documentation names are unsafe.
    #[default]
    Documented,
    /// Those calls and the virtual memory calls are unsafe.
    MappingSpoils,
    /// All calls that the documentation does not allow are unsafe.
    Strict,
    /// As `Strict`, even in the relaxed mode.
    Merciless,
    /// No call is unsafe.
    Lenient,
}

/// Calls of virtual memory.
const MAPPING: [&str; 9] = [
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
];

/// Other calls that the documentation neither allows nor forbids. It allows queueing work in a stream that is not being
/// captured, but does not say in which capture modes.
const SILENT: [&str; 12] = [
    "cuMemGetInfo_v2",
    "cuMemHostGetDevicePointer_v2",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuEventRecord",
    "cuStreamGetId",
    "cuStreamWaitEvent",
    "cuMemsetD8Async",
];

impl SimDriver {
    /// Refuses a query of an event, or a wait for it. A captured event is always refused, any other event only during
    /// captures whose modes concern this thread. A refusal invalidates the captures.
    pub(crate) fn check_event(&mut self, event: usize) -> Result<(), Code> {
        let Some(captured) = self.events.get(event)?.captured.clone() else {
            return self.unsafe_call();
        };
        self.captures.invalidate(captured.capture);
        Err(Code::CAPTURED_EVENT)
    }

    /// Refuses a query of, or a wait for, a stream that is being captured, and invalidates the capture.
    pub(crate) fn check_stream(&mut self, stream: usize) -> Result<(), Code> {
        if let Some((_, capture)) = self.capture(stream) {
            capture.check()?;
            capture.invalid = true;
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.spoil_implicit(stream)
    }

    /// Refuses a query about a stream that is being captured, and invalidates the capture.
    pub(crate) fn check_question(&mut self, stream: usize) -> Result<(), Code> {
        let is_allowed = self.capture_rules == CaptureRules::Lenient;
        match self.capture(stream) {
            Some(_) if !is_allowed => self.check_stream(stream),
            _ => Ok(()),
        }
    }

    /// Refuses a wait for a whole context while any of its streams is being captured, and invalidates the captures.
    pub(crate) fn check_context(&mut self, context: usize) -> Result<(), Code> {
        if self.capture_rules == CaptureRules::Lenient {
            return Ok(());
        }
        let streams = self.streams_of(context);
        let ids: Vec<CaptureId> = streams
            .iter()
            .filter_map(|stream| self.captures.of(*stream))
            .collect();
        self.spoil(&ids, Code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call that is not allowed during captures whose modes concern this thread.
    pub(crate) fn unsafe_call(&mut self) -> Result<(), Code> {
        let mode = match self.capture_rules {
            CaptureRules::Lenient => return Ok(()),
            CaptureRules::Merciless => CAPTURE_MODE_GLOBAL,
            _ => thread::capture_mode(),
        };
        if mode == CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let me = thread::number();
        let minds = |capture: &Capture| {
            let own = capture.thread == me && capture.mode != CAPTURE_MODE_RELAXED;
            own || (mode == CAPTURE_MODE_GLOBAL && capture.mode == CAPTURE_MODE_GLOBAL)
        };
        let active = self.captures.active.iter();
        let ids: Vec<CaptureId> = active
            .filter(|(_, capture)| minds(capture))
            .map(|(id, _)| *id)
            .collect();
        self.spoil(&ids, Code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call that the documentation does not mention, if the [rules](CaptureRules) count
    /// it as unsafe.
    pub(crate) fn check_rules(&mut self, name: &str) -> Result<(), Code> {
        let is_unsafe = match self.capture_rules {
            CaptureRules::Documented | CaptureRules::Lenient => false,
            CaptureRules::MappingSpoils => MAPPING.contains(&name),
            CaptureRules::Strict | CaptureRules::Merciless => {
                MAPPING.contains(&name) || SILENT.contains(&name)
            }
        };
        if is_unsafe {
            self.unsafe_call()
        } else {
            Ok(())
        }
    }

    /// Returns the captures of blocking streams, if `stream` is the legacy default stream of their context.
    pub(super) fn implicit_captures(&self, stream: usize) -> Result<Vec<CaptureId>, Code> {
        let known = self.streams.get(stream)?;
        if !known.is_legacy || self.captures.active.is_empty() {
            return Ok(Vec::new());
        }
        let blocking = self.blocking_streams(known.context);
        let ids = blocking.iter().filter_map(|other| self.captures.of(*other));
        Ok(ids.collect())
    }

    /// Refuses a use of the legacy default stream, which would wait for blocking streams that are being captured.
    pub(crate) fn spoil_implicit(&mut self, stream: usize) -> Result<(), Code> {
        let ids = self.implicit_captures(stream)?;
        self.spoil(&ids, Code::STREAM_CAPTURE_IMPLICIT)
    }

    fn spoil(&mut self, ids: &[CaptureId], code: Code) -> Result<(), Code> {
        for id in ids {
            self.captures.invalidate(*id);
        }
        if ids.is_empty() {
            return Ok(());
        }
        Err(code)
    }
}
