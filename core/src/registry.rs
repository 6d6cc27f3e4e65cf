//! [`Registry`]: allocators by name and priority, of which a process uses the best one.
//!
//! TensorFlow registers a factory for each kind of CPU allocator before `main` and asks for the best
//! one later. Here a registry is a value: fixed places, no lock, `&mut self`; put it behind a
//! [`Locked`](crate::Locked) to share it. What upstream ends the process for is an error here.
//!
//! * REG1 names are not empty, priorities not negative, and no two entries share both.
//! * REG2 the highest priority wins, and the first registered among equals.
//! * REG3 once something was asked for, nothing is registered any more: the answer could not change.
//! * REG4 what was made is kept: one allocator, and one source of memory for each node.

use core::fmt;
use core::panic::Location;

use heapless::Vec;

/// Makes allocators of one kind.
pub trait AllocatorFactory {
    /// What it makes for the process.
    type Allocator;
    /// What it makes for one node: where an allocator's regions come from.
    type Source;

    /// Makes the allocator; `None` if it cannot.
    fn allocator(&self) -> Option<Self::Allocator>;

    /// Makes a source of memory near a node, or anywhere; `None` if it cannot.
    fn source(&self, node: Option<u32>) -> Option<Self::Source>;

    /// Whether nodes matter to its sources. Then it is preferred for them.
    fn is_numa_aware(&self) -> bool {
        false
    }
}

impl<F: AllocatorFactory + ?Sized> AllocatorFactory for &F {
    type Allocator = F::Allocator;
    type Source = F::Source;

    fn allocator(&self) -> Option<Self::Allocator> {
        (**self).allocator()
    }

    fn source(&self, node: Option<u32>) -> Option<Self::Source> {
        (**self).source(node)
    }

    fn is_numa_aware(&self) -> bool {
        (**self).is_numa_aware()
    }
}

/// A factory, and how it was registered.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'n, F> {
    /// Its name; not empty.
    pub name: &'n str,
    /// The higher, the better; not negative.
    pub priority: i32,
    /// Where in the program it was registered.
    pub place: &'static Location<'static>,
    factory: F,
}

/// Up to `ENTRIES` factories, and what they made: one allocator, and sources for up to `NODES` nodes and
/// for none.
///
/// ```
/// use larder_core::registry::{AllocatorFactory, Registry};
/// struct Plain;
/// impl AllocatorFactory for Plain {
///     type Allocator = &'static str;
///     type Source = u32;
///     fn allocator(&self) -> Option<&'static str> {
///         Some("plain")
///     }
///     fn source(&self, node: Option<u32>) -> Option<u32> {
///         Some(node.unwrap_or(0))
///     }
/// }
/// let mut registry = Registry::<Plain, 4, 2>::new(2);
/// registry.register("plain", 100, Plain)?;
/// assert_eq!(registry.allocator(), Ok(&"plain"));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Registry<'n, F: AllocatorFactory, const ENTRIES: usize = 8, const NODES: usize = 8> {
    entries: Vec<Entry<'n, F>, ENTRIES>,
    /// Nodes that there are.
    nodes: u32,
    /// REG3.
    is_closed: bool,
    allocator: Option<F::Allocator>,
    any: Option<F::Source>,
    near: [Option<F::Source>; NODES],
}

impl<'n, F: AllocatorFactory, const ENTRIES: usize, const NODES: usize>
    Registry<'n, F, ENTRIES, NODES>
{
    /// Nothing registered, on a machine of so many nodes. More than `NODES` are not told apart: sources
    /// near those beyond are refused.
    pub const fn new(nodes: u32) -> Self {
        Self {
            entries: Vec::new(),
            nodes,
            is_closed: false,
            allocator: None,
            any: None,
            near: [const { None }; NODES],
        }
    }

    /// Enters a factory. O(entries).
    ///
    /// # Errors
    /// [`RegistryError`]; nothing has changed then, and the factory is dropped.
    #[track_caller]
    pub fn register(
        &mut self,
        name: &'n str,
        priority: i32,
        factory: F,
    ) -> Result<(), RegistryError> {
        let place = Location::caller();
        if self.is_closed {
            return Err(RegistryError::Closed);
        }
        if name.is_empty() {
            return Err(RegistryError::NoName);
        }
        if priority < 0 {
            return Err(RegistryError::NegativePriority { priority });
        }
        let same = |entry: &&Entry<'n, F>| entry.name == name && entry.priority == priority;
        if let Some(first) = self.entries.iter().find(same) {
            return Err(RegistryError::Twice { first: first.place });
        }
        let entry = Entry {
            name,
            priority,
            place,
            factory,
        };
        let entered = self.entries.push(entry);
        entered.map_err(|_| RegistryError::Full { entries: ENTRIES })
    }

    /// The allocator of the best factory, made when it is asked for first. O(entries) then, and O(1).
    ///
    /// # Errors
    /// [`RegistryError::Empty`], and [`RegistryError::Refused`] if it could not be made; it is tried
    /// again the next time.
    pub fn allocator(&mut self) -> Result<&F::Allocator, RegistryError> {
        let best = best(&self.entries, |_| true).ok_or(RegistryError::Empty)?;
        self.is_closed = true;
        kept(&mut self.allocator, || best.factory.allocator())
    }

    /// A source of memory near a node, or anywhere, from the best factory that knows nodes; if none
    /// does, from the best one. One for each node, made when it is asked for first.
    ///
    /// # Errors
    /// [`RegistryError::Empty`]; [`RegistryError::Refused`] if it could not be made, and it is tried again
    /// the next time; [`RegistryError::Node`].
    pub fn source(&mut self, node: Option<u32>) -> Result<&F::Source, RegistryError> {
        let aware = best(&self.entries, |entry| entry.factory.is_numa_aware());
        let chosen = aware.or_else(|| best(&self.entries, |_| true));
        let chosen = chosen.ok_or(RegistryError::Empty)?;
        let slot = match node {
            None => &mut self.any,
            Some(node) => {
                let nodes = self.nodes;
                let index = usize::try_from(node).ok().filter(|_| node < nodes);
                let slot = index.and_then(|index| self.near.get_mut(index));
                slot.ok_or(RegistryError::Node { node, nodes })?
            }
        };
        self.is_closed = true;
        kept(slot, || chosen.factory.source(node))
    }

    /// The entry that [`allocator`](Self::allocator) takes.
    pub fn best(&self) -> Option<&Entry<'n, F>> {
        best(&self.entries, |_| true)
    }

    /// All entries, in the order in which they were registered.
    pub fn entries(&self) -> &[Entry<'n, F>] {
        &self.entries
    }

    /// Whether nothing can be registered any more.
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }
}

/// REG2 among those that `wanted` names.
fn best<'e, 'n, F>(
    entries: &'e [Entry<'n, F>],
    wanted: impl Fn(&Entry<'n, F>) -> bool,
) -> Option<&'e Entry<'n, F>> {
    let mut best: Option<&Entry<'n, F>> = None;
    for entry in entries.iter().filter(|entry| wanted(entry)) {
        if best.is_none_or(|best| entry.priority > best.priority) {
            best = Some(entry);
        }
    }
    best
}

/// REG4.
fn kept<T>(slot: &mut Option<T>, make: impl FnOnce() -> Option<T>) -> Result<&T, RegistryError> {
    if slot.is_none() {
        *slot = make();
    }
    slot.as_ref().ok_or(RegistryError::Refused)
}

impl<F: AllocatorFactory, const ENTRIES: usize, const NODES: usize> fmt::Debug
    for Registry<'_, F, ENTRIES, NODES>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .entries
            .iter()
            .map(|entry| (entry.name, entry.priority));
        f.debug_map().entries(names).finish()
    }
}

/// Why a registry refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RegistryError {
    /// The name is empty.
    NoName,
    /// The priority is negative.
    NegativePriority {
        /// What it was.
        priority: i32,
    },
    /// An entry has this name and priority already.
    Twice {
        /// Where it was registered.
        first: &'static Location<'static>,
    },
    /// Something was asked for already.
    Closed,
    /// All places are taken.
    Full {
        /// How many there are.
        entries: usize,
    },
    /// Nothing was registered.
    Empty,
    /// The factory that was chosen made nothing.
    Refused,
    /// There is no such node, or no place for one so high.
    Node {
        /// The node that was asked for, counted from 0.
        node: u32,
        /// How many there are.
        nodes: u32,
    },
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoName => f.write_str("the name of an allocator is empty: give it one"),
            Self::NegativePriority { priority } => {
                write!(f, "the priority {priority} is negative: give one from 0 up")
            }
            Self::Twice { first } => write!(
                f,
                "this name and priority were registered at {first} already: change one of them"
            ),
            Self::Closed => f.write_str(
                "an allocator was asked for already: register all before the first one is used",
            ),
            Self::Full { entries } => write!(
                f,
                "all {entries} places are taken: make the registry larger"
            ),
            Self::Empty => f.write_str("no allocator is registered: register one first"),
            Self::Refused => f.write_str("the allocator that was chosen could not be made: ask again when what it lacked is there, or \
                 register one that does not lack it with a higher priority"),
            Self::Node { node, nodes } => write!(
                f,
                "there is no place for node {node} of {nodes}: nodes count from 0, and the registry's type \
                 says how many it keeps"
            ),
        }
    }
}

impl core::error::Error for RegistryError {}
