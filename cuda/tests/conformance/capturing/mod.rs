//! Stream capture and graphs.

mod borders;
mod calls;
mod graphs;
mod refused;

use larder_cuda_abi::{GraphExecHandle, GraphHandle, StreamHandle, constants};

use crate::{
    api::{Answer, capture},
    own::Stream,
};

const GLOBAL: u32 = constants::CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: u32 = constants::CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: u32 = constants::CAPTURE_MODE_RELAXED;

fn begin(stream: StreamHandle, mode: u32) {
    capture::begin(stream, mode).expect("a capture");
}

fn status(stream: StreamHandle) -> u32 {
    capture::status(stream).expect("a status")
}

/// Makes a call during a relaxed capture of a stream. Ends the capture, and returns the call's answer.
fn during<T>(stream: &Stream, call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    begin(stream.0, RELAXED);
    let answer = call();
    let _ = capture::end(stream.0).map(Graph);
    assert_eq!(status(stream.0), constants::CAPTURE_STATUS_NONE);
    answer
}

/// Captures work of a stream and makes it ready to launch.
fn captured(stream: &Stream, work: impl FnOnce()) -> Exec {
    begin(stream.0, THREAD_LOCAL);
    work();
    Exec::of(&Graph::end(stream.0))
}

/// A graph, destroyed on drop.
#[derive(Debug)]
struct Graph(GraphHandle);

impl Graph {
    fn end(stream: StreamHandle) -> Self {
        Self(capture::end(stream).expect("a graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = capture::destroy(self.0);
    }
}

/// A graph ready to launch, destroyed on drop.
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
