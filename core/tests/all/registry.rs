//! Allocators by name and priority: which one is chosen, what is refused, what is made how often.

use std::cell::Cell;

use larder_core::registry::{AllocatorFactory, Registry, RegistryError};

/// What a factory makes: its name, the node, and how many it had made before.
type Made = (&'static str, Option<u32>, u32);

struct Factory {
    name: &'static str,
    numa: bool,
    made: Cell<u32>,
    /// Refuses that many times.
    refuses: Cell<u32>,
}

impl Factory {
    fn new(name: &'static str, numa: bool) -> Self {
        Self {
            name,
            numa,
            made: Cell::new(0),
            refuses: Cell::new(0),
        }
    }

    fn make(&self, node: Option<u32>) -> Option<Made> {
        if self.refuses.get() > 0 {
            self.refuses.set(self.refuses.get() - 1);
            return None;
        }
        let made = self.made.get();
        self.made.set(made + 1);
        Some((self.name, node, made))
    }
}

impl AllocatorFactory for Factory {
    type Allocator = Made;
    type Source = Made;

    fn allocator(&self) -> Option<Made> {
        self.make(None)
    }

    fn source(&self, node: Option<u32>) -> Option<Made> {
        self.make(node)
    }

    fn is_numa_aware(&self) -> bool {
        self.numa
    }
}

type Small<'n> = Registry<'n, Factory, 3, 2>;

#[test]
fn s3_6_the_highest_priority_is_chosen_and_the_first_registered_among_equals() {
    let mut registry = Small::new(1);
    for (name, priority) in [("default", 100), ("first", 300), ("second", 300)] {
        let factory = Factory::new(name, false);
        registry.register(name, priority, factory).unwrap();
    }
    assert_eq!(registry.best().unwrap().name, "first");
    assert_eq!(registry.allocator(), Ok(&("first", None, 0)));
    assert_eq!(registry.allocator(), Ok(&("first", None, 0)), "made once");
    let names: Vec<_> = registry.entries().iter().map(|e| e.name).collect();
    assert_eq!(names, ["default", "first", "second"]);
}

#[test]
fn s3_6_what_upstream_aborts_for_is_an_error() {
    let mut registry = Small::new(1);
    let new = || Factory::new("a", false);
    assert_eq!(registry.allocator(), Err(RegistryError::Empty));
    assert_eq!(registry.source(None), Err(RegistryError::Empty));
    assert!(!registry.is_closed(), "nothing was given");
    assert_eq!(registry.register("", 1, new()), Err(RegistryError::NoName));
    assert_eq!(
        registry.register("a", -1, new()),
        Err(RegistryError::NegativePriority { priority: -1 })
    );
    let line = line!() + 1;
    registry.register("a", 0, new()).unwrap();
    match registry.register("a", 0, new()) {
        Err(RegistryError::Twice { first }) => {
            assert_eq!((first.line(), first.file()), (line, file!()));
        }
        other => panic!("{other:?}"),
    }
    registry.register("a", 1, new()).unwrap();
    registry.register("b", 1, new()).unwrap();
    assert_eq!(
        registry.register("c", 1, new()),
        Err(RegistryError::Full { entries: 3 })
    );
    registry.allocator().unwrap();
    assert_eq!(registry.register("d", 1, new()), Err(RegistryError::Closed));
}

#[test]
fn s3_6_a_source_closes_the_registry_too() {
    let mut registry = Small::new(1);
    registry.register("a", 1, Factory::new("a", false)).unwrap();
    registry.source(None).unwrap();
    let late = registry.register("b", 2, Factory::new("b", false));
    assert_eq!(late, Err(RegistryError::Closed));
}

#[test]
fn s3_6_a_factory_that_knows_nodes_beats_all_others_for_sources_only() {
    let mut registry = Small::new(2);
    for (name, priority, numa) in [("plain", 300, false), ("low", 1, true), ("numa", 20, true)] {
        let factory = Factory::new(name, numa);
        registry.register(name, priority, factory).unwrap();
    }
    assert_eq!(registry.source(None), Ok(&("numa", None, 0)));
    assert_eq!(registry.source(Some(1)), Ok(&("numa", Some(1), 1)));
    assert_eq!(registry.source(Some(0)), Ok(&("numa", Some(0), 2)));
    // One for each node.
    assert_eq!(registry.source(Some(1)), Ok(&("numa", Some(1), 1)));
    assert_eq!(registry.allocator(), Ok(&("plain", None, 0)));
}

#[test]
fn s3_6_without_one_that_knows_nodes_the_priority_decides() {
    let mut registry = Small::new(2);
    for (name, priority) in [("a", 1), ("b", 2)] {
        let factory = Factory::new(name, false);
        registry.register(name, priority, factory).unwrap();
    }
    assert_eq!(registry.source(Some(0)), Ok(&("b", Some(0), 0)));
}

#[test]
fn s3_6_a_node_that_is_not_there_is_refused_also_the_one_behind_the_last() {
    // Two nodes of two places; one node of two places; three nodes of two places.
    for (nodes, good) in [(2, 2), (1, 1), (3, 2), (0, 0)] {
        let mut registry = Small::new(nodes);
        registry.register("a", 1, Factory::new("a", true)).unwrap();
        for node in 0..good {
            assert!(registry.source(Some(node)).is_ok());
        }
        for node in [good, good + 1, u32::MAX] {
            let refused = registry.source(Some(node));
            assert_eq!(refused, Err(RegistryError::Node { node, nodes }));
        }
    }
}

#[test]
fn a_factory_that_made_nothing_is_asked_again() {
    let mut registry = Small::new(1);
    let factory = Factory::new("a", false);
    factory.refuses.set(2);
    registry.register("a", 1, factory).unwrap();
    assert_eq!(registry.allocator(), Err(RegistryError::Refused));
    assert!(registry.is_closed());
    assert_eq!(registry.source(None), Err(RegistryError::Refused));
    assert_eq!(registry.allocator(), Ok(&("a", None, 0)));
}

#[test]
fn factories_of_several_types_stand_side_by_side_behind_references() {
    struct Other;
    impl AllocatorFactory for Other {
        type Allocator = Made;
        type Source = Made;
        fn allocator(&self) -> Option<Made> {
            Some(("other", None, 0))
        }
        fn source(&self, node: Option<u32>) -> Option<Made> {
            Some(("other", node, 0))
        }
    }
    type Any<'f> = &'f dyn AllocatorFactory<Allocator = Made, Source = Made>;
    let one = Factory::new("one", true);
    let mut registry = Registry::<Any<'_>, 2, 1>::new(1);
    registry.register("one", 1, &one).unwrap();
    registry.register("other", 2, &Other).unwrap();
    assert_eq!(registry.allocator(), Ok(&("other", None, 0)));
    assert_eq!(registry.source(None), Ok(&("one", None, 0)));
    assert_eq!(format!("{registry:?}"), r#"{"one": 1, "other": 2}"#);
}
