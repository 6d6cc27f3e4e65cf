//! A capture that always ends, even after an error.

use std::sync::Arc;

use cudarc::driver::{CudaStream, sys};

use crate::common::graph::Graph;
use crate::faults_everything::failure::Failure;

pub(crate) struct Capture<'s> {
    stream: &'s Arc<CudaStream>,
    is_open: bool,
}

const TRIES: usize = 3;

impl<'s> Capture<'s> {
    pub(crate) fn begin(stream: &'s Arc<CudaStream>) -> Result<Self, Failure> {
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(Self {
            stream,
            is_open: true,
        })
    }

    pub(crate) fn end(mut self) -> Result<Graph, Failure> {
        let graph = Graph::end_capture(self.stream)?;
        self.is_open = false;
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let none = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        for _ in 0..TRIES {
            if !self.is_open || self.stream.capture_status() == Ok(none) {
                return;
            }
            // Destroys the graph, if there is one.
            drop(Graph::end_capture(self.stream));
        }
    }
}
