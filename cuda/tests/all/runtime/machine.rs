//! The machine's nodes, read from a made-up `/sys` and from this machine's own.

use std::fs;
use std::path::PathBuf;

use larder_core::BlockAllocator;
use larder_cuda::runtime::{Binding, Node, Runtime, RuntimeConfig, Topology};

use crate::runtime::rig::{holds, numa, pci, take, write};

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("larder-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn nodes_and_devices_are_read_as_the_kernel_writes_them() {
    let tree = Tree::new(
        "nodes",
        &[
            ("devices/system/node/online", "0-1,4\n"),
            ("bus/pci/devices/0000:01:00.0/numa_node", "4\n"),
            ("bus/pci/devices/0000:02:00.0/numa_node", "-1\n"),
            ("bus/pci/devices/0000:03:00.0/numa_node", "3\n"),
        ],
    );
    let topology = Topology::from_sys(&tree.0);
    assert_eq!(topology.nodes(), [0, 1, 4].map(Node::new));
    assert_eq!(topology.place_of(Node::new(4)), Some(2));
    assert_eq!(topology.place_of(Node::new(2)), None);
    for (bus, node, why) in [
        (1, 4, "as it is written"),
        (2, 0, "the kernel does not know"),
        (3, 0, "a node that is not online"),
        (9, 0, "no such device"),
    ] {
        assert_eq!(topology.node_of(pci(bus)), Node::new(node), "{why}");
    }
}

#[test]
fn a_system_that_says_nothing_has_node_zero_alone() {
    for text in ["", "nonsense"] {
        let tree = Tree::new("silent", &[("devices/system/node/online", text)]);
        assert_eq!(Topology::from_sys(&tree.0).nodes(), [Node::ZERO]);
    }
    let tree = Tree::new("empty", &[]);
    assert_eq!(Topology::from_sys(&tree.0).nodes(), [Node::ZERO]);
}

#[test]
fn every_node_of_this_machine_gives_memory_that_is_bound_or_says_that_it_is_not() {
    let runtime = Runtime::new(RuntimeConfig {
        cpu_bfc: Some(true),
        ..numa()
    });
    let nodes = runtime.topology().nodes();
    println!("this machine has {} NUMA nodes", nodes.len());
    for node in nodes {
        let memory = runtime.cpu_allocator(Some(*node)).unwrap();
        let block = take(&memory, 1 << 20);
        write(&block, 9);
        assert!(holds(&block, 9));
        println!("memory of {node}: {:?}", memory.binding());
        memory.free(block).unwrap();
    }
}

#[test]
fn memory_of_a_node_that_the_kernel_has_not_is_unbound_and_says_so() {
    let made_up = Topology::made([0, 1000], []);
    let config = RuntimeConfig {
        cpu_bfc: Some(true),
        ..numa()
    };
    let runtime = Runtime::with(config, made_up, Vec::new());
    let memory = runtime.cpu_allocator(Some(Node::new(1000))).unwrap();
    assert_eq!(memory.node(), Some(Node::new(1000)));
    let block = take(&memory, 1000);
    write(&block, 1);
    assert_eq!(memory.binding(), Binding::Refused { regions: 1 });
    memory.free(block).unwrap();
}
