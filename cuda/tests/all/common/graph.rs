//! Graphs of captures.

use cudarc::driver::{CudaStream, DriverError, sys};

/// A graph of what was captured, ready to run.
pub(crate) struct Graph(sys::CUgraph, sys::CUgraphExec);

// SAFETY: handles, which any thread may use.
unsafe impl Send for Graph {}

impl Graph {
    /// Ends the capture of a stream.
    pub(crate) fn end_capture(stream: &CudaStream) -> Result<Self, DriverError> {
        let mut graph = Self(std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream captures; the handle outlives the call.
        unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph.0) }.result()?;
        // SAFETY: the graph was made just now; the handle outlives the call.
        unsafe { sys::cuGraphInstantiateWithFlags(&raw mut graph.1, graph.0, 0) }.result()?;
        Ok(graph)
    }

    pub(crate) fn launch(&self, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: stream and graph exist: both are held.
        unsafe { sys::cuGraphLaunch(self.1, stream.cu_stream()) }.result()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Once more where a sweep refused it.
        let twice = |destroy: &dyn Fn() -> sys::CUresult| {
            let destroyed = destroy().result().or_else(|_| destroy().result());
            assert!(
                destroyed.is_ok() || std::thread::panicking(),
                "{destroyed:?}"
            );
        };
        if !self.1.is_null() {
            // SAFETY: it was made above, and its work is done or queued.
            twice(&|| unsafe { sys::cuGraphExecDestroy(self.1) });
        }
        if !self.0.is_null() {
            // SAFETY: it was made above, and its work is done or queued.
            twice(&|| unsafe { sys::cuGraphDestroy(self.0) });
        }
    }
}
