//! Stream capture and graphs.

mod borders;
mod calls;
mod graphs;
mod refused;

use larder_cuda_abi::{GraphExecHandle, GraphHandle, StreamHandle, constants};

use crate::api::capture;

const GLOBAL: u32 = constants::CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: u32 = constants::CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: u32 = constants::CAPTURE_MODE_RELAXED;

fn begin(stream: StreamHandle, mode: u32) {
    capture::begin(stream, mode).expect("a capture");
}

fn status(stream: StreamHandle) -> u32 {
    capture::status(stream).expect("a status")
}

/// A graph, destroyed at the end.
#[derive(Debug)]
struct Graph(GraphHandle);

impl Graph {
    /// Ends the stream's capture.
    fn end(stream: StreamHandle) -> Self {
        Self(capture::end(stream).expect("a graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = capture::destroy(self.0);
    }
}

/// A graph ready to run, destroyed at the end.
#[derive(Debug)]
struct Exec(GraphExecHandle);

impl Exec {
    fn of(graph: &Graph) -> Self {
        Self(capture::instantiate(graph.0).expect("a graph that can run"))
    }

    fn launch(&self, stream: StreamHandle) {
        capture::launch(self.0, stream).expect("a launch");
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        let _ = capture::destroy_exec(self.0);
    }
}
