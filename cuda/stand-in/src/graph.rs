//! Graphs and their launches.
//!
//! An instantiated graph has hidden streams of its own, one for each chain of nodes. A launch
//! queues every node anew, in the stream of its chain, after the nodes it depends on. In the
//! launching stream, one operation comes before all nodes and one after them, so that the launch
//! takes its turn in the stream like other work. Launches of one graph run one after the other.

use std::collections::BTreeSet;

use larder_cuda_abi::Code;
use larder_cuda_abi::constants::STREAM_NON_BLOCKING;

use crate::clock::VectorClock;
use crate::driver::SimDriver;
use crate::queue::{OpId, SimStream, Work};

/// One node.
#[derive(Clone, Debug)]
pub(crate) struct GraphNode {
    pub(crate) handle: usize,
    pub(crate) context: usize,
    pub(crate) work: Work,
    /// Indexes of the nodes that this one depends on, all smaller than its own.
    pub(crate) after: Vec<usize>,
}

/// A graph.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<GraphNode>,
    /// Whether a capture still adds nodes.
    pub(crate) capturing: bool,
}

/// A graph ready to be launched.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) nodes: Vec<GraphNode>,
    /// The stream of each node.
    stream_ids: Vec<usize>,
    /// Last operation of the newest launch, and its clock.
    pub(crate) last: Option<(OpId, VectorClock)>,
}

impl Graph {
    /// Creates a graph for a capture to fill.
    pub(crate) fn captured() -> Self {
        Self {
            nodes: Vec::new(),
            capturing: true,
        }
    }

    /// Adds a node. Returns its index.
    pub(crate) fn add(
        &mut self,
        handle: usize,
        context: usize,
        work: Work,
        after: Vec<usize>,
    ) -> usize {
        self.nodes.push(GraphNode {
            handle,
            context,
            work,
            after,
        });
        self.nodes.len() - 1
    }
}

/// Returns the indexes of the nodes that no other node depends on.
pub(crate) fn ends(nodes: &[GraphNode]) -> Vec<usize> {
    let inner: BTreeSet<usize> = nodes.iter().flat_map(|node| node.after.clone()).collect();
    (0..nodes.len())
        .filter(|index| !inner.contains(index))
        .collect()
}

/// Returns the number of each node's chain. A node continues the chain of the first of its
/// dependencies that is in the same context and that no other node continues. If there is none, the
/// node begins a chain.
fn chains(nodes: &[GraphNode]) -> Vec<usize> {
    let mut of: Vec<usize> = Vec::with_capacity(nodes.len());
    let mut continued = BTreeSet::new();
    let mut count = 0;
    for node in nodes {
        let same = |index: &&usize| {
            let before = nodes.get(**index);
            before.is_some_and(|before| before.context == node.context)
        };
        let before = node.after.iter().filter(same);
        let free = before
            .filter(|index| !continued.contains(*index))
            .find_map(|index| Some((*index, *of.get(*index)?)));
        match free {
            Some((index, chain)) => {
                continued.insert(index);
                of.push(chain);
            }
            None => {
                of.push(count);
                count += 1;
            }
        }
    }
    of
}

impl SimDriver {
    /// Makes a graph ready to be launched.
    pub(crate) fn instantiate(&mut self, graph: usize) -> Result<usize, Code> {
        let graph = self.graphs.get(graph)?;
        if graph.capturing {
            return Err(Code::ILLEGAL_STATE);
        }
        let nodes = graph.nodes.clone();
        let chains = chains(&nodes);
        let mut streams: Vec<usize> = Vec::new();
        for (node, chain) in nodes.iter().zip(&chains) {
            if *chain == streams.len() {
                let handle = self.handles.next();
                let mut stream = SimStream::new(node.context, STREAM_NON_BLOCKING);
                stream.is_hidden = true;
                self.streams.insert(handle, stream);
                streams.push(handle);
            }
        }
        let stream_ids = chains
            .iter()
            .filter_map(|chain| streams.get(*chain).copied())
            .collect();
        let exec = Exec {
            nodes,
            stream_ids,
            last: None,
        };
        let handle = self.handles.next();
        self.execs.insert(handle, exec);
        Ok(handle)
    }

    /// Destroys an instantiated graph. Its running launches continue.
    pub(crate) fn destroy_exec(&mut self, handle: usize) -> Result<(), Code> {
        let exec = self.execs.remove(handle)?;
        for stream_id in exec.stream_ids {
            if let Ok(stream) = self.streams.get_mut(stream_id) {
                stream.destroyed = true;
                self.remove_idle_stream(stream_id);
            }
        }
        Ok(())
    }

    /// Launches an instantiated graph in a stream.
    pub(crate) fn launch_exec(&mut self, handle: usize, stream: usize) -> Result<(), Code> {
        let exec = self.execs.get(handle)?;
        if self.is_capturing(stream) {
            return self.capture_launch(stream, handle);
        }
        for stream_id in &exec.stream_ids {
            let context = self.streams.get(*stream_id)?.context;
            self.alive(context)?;
        }
        let (nodes, stream_ids) = (exec.nodes.clone(), exec.stream_ids.clone());
        let before = exec.last.clone();
        let first = self.submit_behind(stream, before)?;
        let start = self.streams.get(stream)?.clock.clone();
        // Operation and clock of each node.
        let mut done: Vec<(OpId, VectorClock)> = Vec::with_capacity(nodes.len());
        for (node, stream_id) in nodes.into_iter().zip(stream_ids) {
            let behind = node.after.iter().filter_map(|index| done.get(*index));
            let mut after = vec![first];
            let mut clock = start.clone();
            for (op, known) in behind {
                after.push(*op);
                clock.join(known);
            }
            self.streams.get_mut(stream_id)?.clock.join(&clock);
            let op = self.submit_after(stream_id, node.work, after)?;
            done.push((op, self.streams.get(stream_id)?.clock.clone()));
        }
        let to = self.streams.get_mut(stream)?;
        for (_, clock) in &done {
            to.clock.join(clock);
        }
        let all = done.iter().map(|(op, _)| *op).collect();
        let last = self.submit_after(stream, Work::Nothing, all)?;
        let clock = self.streams.get(stream)?.clock.clone();
        self.execs.get_mut(handle)?.last = Some((last, clock));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(after: &[&[usize]]) -> Vec<GraphNode> {
        let node = |after: &&[usize]| GraphNode {
            handle: 0,
            context: 1,
            work: Work::Nothing,
            after: after.to_vec(),
        };
        after.iter().map(node).collect()
    }

    #[test]
    fn a_fork_has_a_chain_a_branch() {
        let fork = nodes(&[&[], &[0], &[0], &[1, 2], &[]]);
        assert_eq!(chains(&fork), [0, 0, 1, 0, 2]);
        assert_eq!(ends(&fork), [3, 4]);
    }
}
