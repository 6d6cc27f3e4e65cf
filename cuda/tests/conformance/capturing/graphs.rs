//! The result of a capture, and the effects of its graph.

use larder_cuda_abi::{Code, constants};

use super::{Exec, GLOBAL, Graph, RELAXED, THREAD_LOCAL, begin, captured, status};
use crate::{
    api::{capture, copy, pool, stream},
    gpu::{portable, real_only},
    hold::Hold,
    own::{Device, Event, Host, Kernels, Stream},
};

/// Rule: the capture status of a stream is active from the beginning of a capture to its end (source: CUDA Driver API,
/// Stream Management, cuStreamIsCapturing).
#[test]
fn a_stream_captures_from_beginning_to_end() {
    let _gpu = portable();
    let stream = Stream::blocking();
    assert_eq!(status(stream.0), constants::CAPTURE_STATUS_NONE);
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        begin(stream.0, mode);
        assert_eq!(status(stream.0), constants::CAPTURE_STATUS_ACTIVE);
        drop(Graph::end(stream.0));
        assert_eq!(status(stream.0), constants::CAPTURE_STATUS_NONE);
    }
}

/// Rule: captured work does not run (source: CUDA Driver API, Stream Management, cuStreamBeginCapture: "will not be
/// executed, but will instead be captured into a graph").
#[test]
fn captured_work_does_not_run() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    begin(stream.0, THREAD_LOCAL);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    let graph = Graph::end(stream.0);
    stream.finish();
    assert_eq!(memory.read(), [0; 256]);
    let exec = Exec::of(&graph);
    stream.finish();
    assert_eq!(memory.read(), [0; 256], "nor when it is made ready");
    exec.launch(stream.0);
    stream.finish();
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: a graph runs at each launch (source: CUDA Driver API, Graph Management, cuGraphLaunch).
#[test]
fn a_graph_runs_at_each_launch() {
    let gpu = portable();
    let kernels = Kernels::load();
    gpu.defer(61);
    let (stream, memory) = (Stream::non_blocking(), Device::filled(1024, 1));
    let exec = captured(&stream, || {
        kernels.add(memory.at, memory.at, memory.at, 256, stream.0);
    });
    for _ in 0..3 {
        exec.launch(stream.0);
    }
    stream.finish();
    assert_eq!(memory.words(), [0x0808_0808; 256]);
}

/// Rule: the work of a graph keeps the order of its capture (source: CUDA Programming Guide, CUDA Graphs, Creating a
/// Graph Using Stream Capture).
#[test]
fn a_graph_keeps_its_order() {
    let gpu = portable();
    let kernels = Kernels::load();
    gpu.defer(62);
    let (stream, memory) = (Stream::non_blocking(), Device::filled(2048, 0));
    let (upper, pinned) = (memory.plus(1024), Host::pinned(1024, 3));
    let exec = captured(&stream, || {
        copy::to_device_async(memory.at, pinned.address, 1024, stream.0).expect("a copy");
        copy::between_async(upper, memory.at, 1024, stream.0).expect("a copy");
        kernels.add(upper, upper, memory.at, 256, stream.0);
        copy::fill8_async(memory.at, 1, 1024, stream.0).expect("a fill");
    });
    exec.launch(stream.0);
    stream.finish();
    assert_eq!(memory.read(), [[1; 1024], [6; 1024]].concat());
}

/// Rule: a graph runs after the earlier work and before the later work of the stream in which it is launched (source:
/// CUDA Driver API, Graph Management, cuGraphLaunch).
#[test]
fn a_graph_has_its_place_in_a_stream() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    let exec = captured(&stream, || {
        copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    });
    let hold = Hold::of(stream.0);
    copy::fill8_async(memory.at, 9, 256, stream.0).expect("a fill");
    exec.launch(stream.0);
    copy::fill8_async(memory.at, 2, 128, stream.0).expect("a fill");
    assert_eq!(stream::query(stream.0), Err(Code::NOT_READY));
    hold.end(stream.0);
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: a kernel's parameters are kept as they were when it was captured (source: CUDA Driver API, Execution Control,
/// cuLaunchKernel; Graph Management).
#[test]
fn a_captured_kernel_keeps_its_parameters() {
    let _gpu = portable();
    let kernels = Kernels::load();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(1024, 0));
    let exec = captured(&stream, || {
        // The parameters are overwritten as soon as the launch has returned.
        kernels.fill(memory.at, 256, 77, stream.0);
    });
    exec.launch(stream.0);
    stream.finish();
    assert_eq!(memory.words(), [77; 256]);
}

/// Rule: each captured operation is a node (source: CUDA Driver API, Graph Management, cuGraphGetNodes).
#[test]
fn captured_work_is_nodes() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    begin(stream.0, THREAD_LOCAL);
    let empty = Graph::end(stream.0);
    assert_eq!(capture::node_count(empty.0), Ok(0));
    begin(stream.0, THREAD_LOCAL);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    copy::between_async(memory.at, memory.plus(128), 128, stream.0).expect("a copy");
    let graph = Graph::end(stream.0);
    assert_eq!(capture::node_count(graph.0), Ok(2));
}

/// Rule: a graph without nodes can be launched (source: CUDA Driver API, Graph Management, cuGraphInstantiate,
/// cuGraphLaunch: no error is documented for it).
#[test]
fn an_empty_graph_runs() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    let exec = captured(&stream, || ());
    exec.launch(stream.0);
    stream.finish();
}

/// Rule: a graph may be destroyed once it has been instantiated (source: CUDA Driver API, Graph Management,
/// cuGraphInstantiate, cuGraphDestroy).
#[test]
fn a_ready_graph_outlives_its_graph() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    begin(stream.0, THREAD_LOCAL);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    let graph = Graph::end(stream.0);
    let exec = Exec::of(&graph);
    drop(graph);
    exec.launch(stream.0);
    stream.finish();
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: an instantiated graph that is destroyed while it runs still ends (source: CUDA Driver API, Graph Management,
/// cuGraphExecDestroy: its launches may be pending).
///
/// Uncertain: older documentation does not mention this. The test asserts only that the work of an earlier launch is
/// not lost.
#[test]
fn a_launched_graph_ends_though_destroyed() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    let exec = captured(&stream, || {
        copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    });
    exec.launch(stream.0);
    drop(exec);
    stream.finish();
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: events carry a capture to another stream and back (source: CUDA Programming Guide, CUDA Graphs, Cross-stream
/// Dependencies and Events).
#[test]
fn events_fork_and_join_a_capture() {
    let gpu = portable();
    gpu.defer(63);
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let (fork, join) = (Event::new(), Event::new());
    let memory = Device::filled(256, 0);
    begin(first.0, THREAD_LOCAL);
    copy::fill8_async(memory.at, 1, 256, first.0).expect("a fill");
    fork.record(first.0);
    stream::wait(second.0, fork.0).expect("a wait");
    assert_eq!(status(second.0), constants::CAPTURE_STATUS_ACTIVE);
    copy::fill8_async(memory.at, 2, 128, second.0).expect("a fill");
    join.record(second.0);
    stream::wait(first.0, join.0).expect("a wait");
    copy::fill8_async(memory.at, 3, 64, first.0).expect("a fill");
    let graph = Graph::end(first.0);
    assert_eq!(status(second.0), constants::CAPTURE_STATUS_NONE);
    let exec = Exec::of(&graph);
    for _ in 0..2 {
        exec.launch(first.0);
        first.finish();
        assert_eq!(
            memory.read(),
            [vec![3; 64], vec![2; 64], vec![1; 128]].concat()
        );
        copy::fill8_async(memory.at, 0, 256, first.0).expect("a fill");
    }
    first.finish();
}

/// Rule: allocations in a captured stream become nodes; the graph uses their memory at each launch (source: CUDA
/// Programming Guide, CUDA Graphs, Graph Memory Nodes, Stream Capture).
#[test]
fn a_capture_allocates_for_its_graph() {
    let Some(_gpu) = real_only("it captures no memory, and says CUDA_ERROR_NOT_SUPPORTED") else {
        return;
    };
    let (stream, result) = (Stream::non_blocking(), Device::filled(256, 0));
    let exec = captured(&stream, || {
        let at = pool::alloc(256, stream.0).expect("memory");
        copy::fill8_async(at, 7, 256, stream.0).expect("a fill");
        copy::between_async(result.at, at, 256, stream.0).expect("a copy");
        pool::free(at, stream.0).expect("memory");
    });
    for _ in 0..2 {
        copy::fill8_async(result.at, 0, 256, stream.0).expect("a fill");
        exec.launch(stream.0);
        stream.finish();
        assert_eq!(result.read(), [7; 256]);
    }
}
