//! [`Topology`]: the NUMA nodes of the machine, and the node that each GPU is attached to.

use core::fmt;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use larder_cuda_abi::constants::{DEVICE_PCI_BUS_ID, DEVICE_PCI_DEVICE_ID, DEVICE_PCI_DOMAIN_ID};

use crate::driver::Driver;

/// A NUMA node, identified by the system's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Node(u32);

impl Node {
    /// Node 0, which every machine has.
    pub const ZERO: Self = Self(0);

    /// Returns the node with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns its number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Address of a device on the PCI bus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PciAddress {
    /// The domain, 0 on most machines.
    pub domain: u32,
    /// The bus.
    pub bus: u32,
    /// The device on the bus.
    pub device: u32,
}

impl PciAddress {
    /// Returns a GPU's PCI address. Makes three driver calls and needs no context.
    ///
    /// # Errors
    /// If the driver refuses, or there is no such device.
    pub fn of_device(driver: &Driver, ordinal: i32) -> Result<Self, crate::DriverError> {
        let device = driver.device(ordinal)?;
        let number = |attribute| {
            let value = driver.device_attribute(device, attribute)?;
            // A negative number is invalid, and is looked up as 0.
            Ok::<_, crate::DriverError>(u32::try_from(value).unwrap_or(0))
        };
        Ok(Self {
            domain: number(DEVICE_PCI_DOMAIN_ID)?,
            bus: number(DEVICE_PCI_BUS_ID)?,
            device: number(DEVICE_PCI_DEVICE_ID)?,
        })
    }
}

impl fmt::Display for PciAddress {
    /// Writes the address as the system names it: `0000:3b:00.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.0",
            self.domain, self.bus, self.device
        )
    }
}

/// Source of the nodes of PCI devices.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Pci {
    Sys(PathBuf),
    Table(BTreeMap<PciAddress, Node>),
}

/// The NUMA nodes of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Sorted, without duplicates, never empty.
    nodes: Vec<Node>,
    pci: Pci,
}

impl Topology {
    /// Maximum number of nodes, the same as Linux's. Nodes with higher numbers are left out.
    pub const MAX_NODES: u32 = 1024;

    /// Returns the topology of this machine, from `/sys`; node 0 alone if the system does not report it.
    pub fn of_machine() -> Self {
        Self::from_sys(Path::new("/sys"))
    }

    /// Reads the topology from one file of a tree like `/sys`.
    pub fn from_sys(root: &Path) -> Self {
        let online = root.join("devices/system/node/online");
        let text = std::fs::read_to_string(online).unwrap_or_default();
        let numbers = listed(&text).unwrap_or_default();
        Self::with(numbers, Pci::Sys(root.to_owned()))
    }

    /// Makes the topology of an invented machine: its nodes, and the node of each device.
    pub fn made(
        nodes: impl IntoIterator<Item = u32>,
        devices: impl IntoIterator<Item = (PciAddress, Node)>,
    ) -> Self {
        Self::with(
            nodes.into_iter().collect(),
            Pci::Table(devices.into_iter().collect()),
        )
    }

    fn with(mut numbers: Vec<u32>, pci: Pci) -> Self {
        numbers.retain(|number| *number < Self::MAX_NODES);
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() {
            numbers.push(0);
        }
        let nodes = numbers.into_iter().map(Node).collect();
        Self { nodes, pci }
    }

    /// Returns the nodes, sorted; never empty.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the index of a node in [`nodes`](Self::nodes); `None` if the machine has no such node.
    /// O(log nodes).
    pub fn place_of(&self, node: Node) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    /// Returns the node that a PCI device is attached to; the first one if that is unknown, or not one of
    /// [`nodes`](Self::nodes).
    pub fn node_of(&self, address: PciAddress) -> Node {
        let found = match &self.pci {
            Pci::Sys(root) => node_in_sys(root, address),
            Pci::Table(table) => table.get(&address).copied(),
        };
        let known = found.filter(|node| self.place_of(*node).is_some());
        known.unwrap_or_else(|| self.first())
    }

    /// Returns the first node, which stands for unknown ones.
    pub fn first(&self) -> Node {
        self.nodes.first().copied().unwrap_or(Node::ZERO)
    }
}

fn node_in_sys(root: &Path, address: PciAddress) -> Option<Node> {
    let file = format!("bus/pci/devices/{address}/numa_node");
    let text = std::fs::read_to_string(root.join(file)).ok()?;
    // If the system does not know the node it writes -1, which does not parse.
    text.trim().parse().ok().map(Node)
}

/// Parses a list of numbers as the kernel writes it: `0-1,3`. Returns `None` if it is invalid.
fn listed(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        // Bounded so that an absurd range does not make an endless list.
        numbers.extend(first..=last.min(Topology::MAX_NODES));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_the_kernel_is_numbers_and_ranges() {
        assert_eq!(listed("0\n"), Some(vec![0]));
        assert_eq!(listed("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(listed(""), Some(vec![]));
        assert_eq!(listed("x"), None);
        assert_eq!(listed("3-1"), Some(vec![]));
        let endless = listed("0-4294967295").unwrap();
        assert!(endless.len() <= 1 + Topology::MAX_NODES as usize);
    }

    #[test]
    fn a_machine_without_words_has_node_zero() {
        assert_eq!(Topology::made([], []).nodes(), [Node::ZERO]);
        assert_eq!(Topology::made([7, 2, 7], []).first(), Node::new(2));
        assert_eq!(Topology::made([5000], []).nodes(), [Node::ZERO]);
    }

    #[test]
    fn an_address_is_written_as_the_system_does() {
        let address = PciAddress {
            domain: 0,
            bus: 0x3b,
            device: 1,
        };
        assert_eq!(address.to_string(), "0000:3b:01.0");
    }
}
