//! Tests of graphs: capture, instantiation, launches.

use std::ptr::null_mut;

use larder_cuda_abi::{Code, constants as c};

use super::driver::*;

#[test]
fn captured_work_runs_at_each_launch_and_not_before() {
    for seed in [None, Some(1), Some(2), Some(3)] {
        let (_guard, _) = begin(seed);
        let (a, x, y) = (stream(), alloc(), alloc());
        ok(fill(x, 1, a));
        ok(fill(y, 2, a));
        capture(a, GLOBAL);
        assert_eq!(status(a), Ok(c::CAPTURE_STATUS_ACTIVE));
        ok(copy(y, x, a));
        ok(fill(x, 5, a));
        let graph = end(a).unwrap();
        assert_eq!((status(a), nodes(graph)), (Ok(c::CAPTURE_STATUS_NONE), 2));
        ok(sync(a));
        assert_eq!((read(x), read(y)), (1, 2));
        let exec = ready(graph);
        ok(cuGraphDestroy(graph));
        ok(cuGraphLaunch(exec, a));
        ok(sync(a));
        assert_eq!((read(x), read(y)), (5, 1));
        ok(cuGraphLaunch(exec, a));
        ok(sync(a));
        assert_eq!((read(x), read(y)), (5, 5));
        assert!(alive().contains("exec 1 0\n"));
        ok(cuGraphExecDestroy(exec));
        assert!(!alive().contains("exec"));
        assert_eq!(findings(), "");
    }
}

#[test]
fn a_fork_and_its_join_keep_their_order_under_every_seed() {
    for seed in 0..30 {
        let (_guard, _) = begin(Some(seed));
        let (a, b, other) = (stream(), stream(), stream());
        let (x, y, z) = (alloc(), alloc(), alloc());
        let (fork, join) = (event(), event());
        capture(a, LOCAL);
        ok(fill(x, 3, a));
        ok(record(fork, a));
        ok(wait(b, fork));
        assert_eq!(status(b), Ok(c::CAPTURE_STATUS_ACTIVE));
        ok(copy(y, x, b));
        ok(copy(z, x, a));
        ok(record(join, b));
        ok(wait(a, join));
        ok(copy(x, y, a));
        ok(fill(y, 8, a));
        let graph = end(a).unwrap();
        assert_eq!(nodes(graph), 5);
        assert_eq!(status(b), Ok(c::CAPTURE_STATUS_NONE));
        let exec = ready(graph);
        ok(fill(x, 1, a));
        ok(cuGraphLaunch(exec, a));
        ok(cuGraphLaunch(exec, other));
        ok(fill(z, 9, other));
        ok(sync(other));
        assert_eq!((read(x), read(y), read(z)), (3, 8, 9));
        assert_eq!(findings(), "", "seed {seed}");
    }
}

#[test]
fn launches_of_one_graph_follow_each_other() {
    for seed in 0..30 {
        let (_guard, _) = begin(Some(seed));
        let (a, b, other) = (stream(), stream(), stream());
        let (source, x, y, older) = (alloc(), alloc(), alloc(), alloc());
        let (fork, join) = (event(), event());
        ok(fill(source, 1, a));
        capture(a, GLOBAL);
        ok(copy(x, source, a));
        ok(record(fork, a));
        ok(fill(source, 9, a));
        ok(wait(b, fork));
        ok(copy(older, y, b));
        ok(copy(y, x, b));
        ok(record(join, b));
        ok(wait(a, join));
        let exec = ready(end(a).unwrap());
        ok(cuGraphLaunch(exec, a));
        ok(cuGraphLaunch(exec, other));
        ok(sync(other));
        assert_eq!((read(older), read(y)), (1, 9), "seed {seed}");
        assert_eq!(findings(), "", "seed {seed}");
    }
}

#[test]
fn branches_without_an_order_race_when_they_run() {
    let (_guard, _) = begin(None);
    let (a, b, x) = (stream(), stream(), alloc());
    let (fork, join) = (event(), event());
    capture(a, GLOBAL);
    ok(record(fork, a));
    ok(wait(b, fork));
    ok(fill(x, 1, a));
    ok(fill(x, 2, b));
    ok(record(join, b));
    ok(wait(a, join));
    let exec = ready(end(a).unwrap());
    assert_eq!(findings(), "");
    ok(cuGraphLaunch(exec, a));
    assert!(findings().starts_with("race: a fill"));
}

#[test]
fn a_graph_reads_pageable_memory_when_it_runs() {
    let (_guard, _) = begin(None);
    let (a, x) = (stream(), alloc());
    let mut bytes = [1_u8; 16];
    let place = bytes.as_mut_ptr();
    capture(a, GLOBAL);
    ok(cuMemcpyHtoDAsync_v2(x, place as usize, 16, a));
    let exec = ready(end(a).unwrap());
    unsafe { place.write_bytes(4, 16) };
    ok(cuGraphLaunch(exec, a));
    ok(sync(a));
    assert_eq!(read(x), 4);
}

#[test]
fn a_capture_tells_what_it_is() {
    let (_guard, _) = begin(None);
    let (a, x) = (stream(), alloc());
    let (mut state, mut id, mut graph, mut count) = (9, 0, 0, 9);
    let mut dependencies = null_mut::<usize>().cast_const();
    let mut info = || {
        ok(cuStreamGetCaptureInfo_v2(
            a,
            &mut state,
            &mut id,
            &mut graph,
            &mut dependencies,
            &mut count,
        ));
        (state, id, graph, count, dependencies)
    };
    assert_eq!(info().0, c::CAPTURE_STATUS_NONE);
    capture(a, GLOBAL);
    assert_eq!(info().3, 0);
    ok(fill(x, 1, a));
    let (state, id, graph, count, dependencies) = info();
    assert_eq!((state, count), (c::CAPTURE_STATUS_ACTIVE, 1));
    assert_ne!(id, 0);
    assert_ne!(unsafe { *dependencies }, 0);
    assert_eq!(cuGraphDestroy(graph), Code::INVALID_VALUE);
    assert_eq!(end(a), Ok(graph));
}

#[test]
fn a_launch_in_a_capture_becomes_part_of_it() {
    let (_guard, _) = begin(Some(7));
    let (a, x, y) = (stream(), alloc(), alloc());
    capture(a, GLOBAL);
    ok(fill(x, 6, a));
    let inner = ready(end(a).unwrap());
    capture(a, GLOBAL);
    ok(fill(y, 1, a));
    ok(cuGraphLaunch(inner, a));
    ok(copy(y, x, a));
    let graph = end(a).unwrap();
    assert_eq!(nodes(graph), 3);
    ok(cuGraphLaunch(ready(graph), a));
    ok(sync(a));
    assert_eq!(read(y), 6);
}

#[test]
fn an_empty_graph_and_a_lost_capture_do_no_harm() {
    let (_guard, _) = begin(None);
    let a = stream();
    capture(a, GLOBAL);
    let graph = end(a).unwrap();
    ok(cuGraphLaunch(ready(graph), a));
    ok(sync(a));
    capture(a, GLOBAL);
    ok(cuStreamDestroy_v2(a));
    assert!(findings().contains("is destroyed while a capture"));
    assert!(alive().contains("graph 1 0\n"));
}
