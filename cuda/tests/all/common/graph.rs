use cudarc::driver::{CudaStream, DriverError, sys};

pub(crate) struct Graph(sys::CUgraph, sys::CUgraphExec);

// SAFETY: the fields are handles, which any thread may use.
unsafe impl Send for Graph {}

impl Graph {
    /// Ends the capture of a stream, and makes its graph ready to launch.
    pub(crate) fn end_capture(stream: &CudaStream) -> Result<Self, DriverError> {
        let mut graph = Self(std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is being captured; the handle outlives the call.
        unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph.0) }.result()?;
        // SAFETY: the graph has just been created; the handle outlives the call.
        unsafe { sys::cuGraphInstantiateWithFlags(&raw mut graph.1, graph.0, 0) }.result()?;
        Ok(graph)
    }

    pub(crate) fn launch(&self, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: the stream and the graph are held, so they exist.
        unsafe { sys::cuGraphLaunch(self.1, stream.cu_stream()) }.result()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A sweep may refuse the first call.
        let twice = |destroy: &dyn Fn() -> sys::CUresult| {
            let destroyed = destroy().result().or_else(|_| destroy().result());
            assert!(
                destroyed.is_ok() || std::thread::panicking(),
                "{destroyed:?}"
            );
        };
        if !self.1.is_null() {
            // SAFETY: created in `end_capture`; its work is done or queued.
            twice(&|| unsafe { sys::cuGraphExecDestroy(self.1) });
        }
        if !self.0.is_null() {
            // SAFETY: created in `end_capture`; its work is done or queued.
            twice(&|| unsafe { sys::cuGraphDestroy(self.0) });
        }
    }
}
