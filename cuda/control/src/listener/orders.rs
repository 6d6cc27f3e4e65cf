//! Tests every order in which pollers and droppers of handles can take their steps. A step is one update
//! under the listener's lock, or the callback itself; so this covers all of the shared state. The test must
//! also find the defects of two broken twins.

use std::collections::BTreeSet;
use std::path::Path;

use super::registry::{FileContent, HandlerId, PollTurn, Registry};

const FILE: &str = "/control";

/// The defect of the protocol under test.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Twin {
    Faithful,
    /// A drop returns without waiting for its callback.
    DoesNotWait,
    /// A poller reports a callback's end before it has dropped it.
    EndsTooSoon,
}

/// A callback, which is a number so that the test knows whether it still exists.
type Callback = HandlerId;

#[derive(Clone, Debug)]
enum Actor {
    /// An actor that polls and reads this content.
    Poller(u8, Polling),
    /// An actor that drops the handle.
    Dropper(HandlerId, Dropping),
}

#[derive(Clone, Debug)]
enum Polling {
    Turn,
    Look,
    Next(HandlerId),
    Inside(HandlerId, Callback),
    Back(HandlerId, Callback),
    Drop(HandlerId, Callback),
    Ended(HandlerId, Option<Callback>),
    End,
    Finished,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Dropping {
    Remove,
    Wait,
    Returned,
}

#[derive(Clone)]
struct ListenerWorld {
    registry: Registry<Callback, usize>,
    actors: Vec<Actor>,
    /// Callbacks that are not yet dropped.
    alive: BTreeSet<Callback>,
    returned: BTreeSet<HandlerId>,
    /// The handler whose callback drops its own handle.
    drops_itself: Option<HandlerId>,
    twin: Twin,
    delivered: Vec<(HandlerId, u8)>,
}

impl ListenerWorld {
    fn new(handlers: usize, actors: Vec<Actor>, twin: Twin) -> Self {
        let mut registry = Registry::new();
        let mut alive = BTreeSet::new();
        for _ in 0..handlers {
            let id = registry.next_id();
            registry.add(Path::new(FILE), id);
            alive.insert(id);
        }
        Self {
            registry,
            actors,
            alive,
            returned: BTreeSet::new(),
            drops_itself: None,
            twin,
            delivered: Vec::new(),
        }
    }

    /// Takes one step of an actor. Returns `Ok(false)` if it cannot take one now.
    fn step(&mut self, index: usize) -> Result<bool, String> {
        match self.actors[index].clone() {
            Actor::Poller(content, at) => {
                let Some(next) = self.poll(index, content, at)? else {
                    return Ok(false);
                };
                self.actors[index] = Actor::Poller(content, next);
            }
            Actor::Dropper(id, at) => {
                let next = match at {
                    Dropping::Remove => {
                        self.remove(id);
                        Dropping::Wait
                    }
                    Dropping::Wait => {
                        if self.twin != Twin::DoesNotWait && self.registry.runs_elsewhere(id, index)
                        {
                            return Ok(false);
                        }
                        if self.alive.contains(&id) {
                            return Err(format!(
                                "the drop of {id} returned before its callback was gone"
                            ));
                        }
                        self.returned.insert(id);
                        Dropping::Returned
                    }
                    Dropping::Returned => return Ok(false),
                };
                self.actors[index] = Actor::Dropper(id, next);
            }
        }
        Ok(true)
    }

    fn remove(&mut self, id: HandlerId) {
        if let Some(callback) = self.registry.remove(Path::new(FILE), id) {
            self.alive.remove(&callback);
        }
    }

    fn poll(&mut self, me: usize, content: u8, at: Polling) -> Result<Option<Polling>, String> {
        let file = Path::new(FILE);
        Ok(Some(match at {
            Polling::Turn => match self.registry.take_turn(me) {
                PollTurn::Mine => Polling::Look,
                PollTurn::Taken => return Ok(None),
                PollTurn::Inside => return Err("inside its own turn".into()),
            },
            Polling::Look => {
                self.registry.record(file, FileContent::Text(vec![content]));
                Polling::Next(0)
            }
            Polling::Next(after) => match self.registry.next(file, after, HandlerId::MAX) {
                Some((id, callback, text)) => {
                    self.delivered.push((id, text[0]));
                    Polling::Inside(id, callback)
                }
                None => Polling::End,
            },
            Polling::Inside(id, callback) => {
                if self.returned.contains(&id) {
                    return Err(format!("{id} runs after its drop returned"));
                }
                if self.drops_itself == Some(id) {
                    self.remove(id);
                    if self.registry.runs_elsewhere(id, me) {
                        return Err("a callback waits for itself".into());
                    }
                }
                Polling::Back(id, callback)
            }
            Polling::Back(id, callback) => {
                if self.returned.contains(&id) {
                    return Err(format!("{id} still ran when its drop returned"));
                }
                match self.registry.done(file, id, callback) {
                    Some(gone) if self.twin == Twin::EndsTooSoon => Polling::Ended(id, Some(gone)),
                    Some(gone) => Polling::Drop(id, gone),
                    None => Polling::Ended(id, None),
                }
            }
            Polling::Drop(id, callback) => {
                self.alive.remove(&callback);
                Polling::Ended(id, None)
            }
            Polling::Ended(id, gone) => {
                self.registry.ended();
                match gone {
                    Some(callback) => Polling::Drop(id, callback),
                    None => Polling::Next(id),
                }
            }
            Polling::End => {
                self.registry.end_turn();
                Polling::Finished
            }
            Polling::Finished => return Ok(None),
        }))
    }

    fn finished(&self) -> bool {
        self.actors.iter().all(|actor| {
            matches!(
                actor,
                Actor::Poller(_, Polling::Finished) | Actor::Dropper(_, Dropping::Returned)
            )
        })
    }
}

/// Explores all orders. Returns their number, or the first fault.
fn explore(
    world: &ListenerWorld,
    check: &impl Fn(&ListenerWorld) -> Result<(), String>,
) -> Result<u64, String> {
    let (mut orders, mut stuck) = (0, true);
    for index in 0..world.actors.len() {
        let mut next = world.clone();
        if next.step(index)? {
            stuck = false;
            orders += explore(&next, check)?;
        }
    }
    if !stuck {
        return Ok(orders);
    }
    if !world.finished() {
        return Err("all wait for each other".into());
    }
    check(world)?;
    Ok(1)
}

fn poller(content: u8) -> Actor {
    Actor::Poller(content, Polling::Turn)
}

fn dropper(id: HandlerId) -> Actor {
    Actor::Dropper(id, Dropping::Remove)
}

fn fine(_: &ListenerWorld) -> Result<(), String> {
    Ok(())
}

#[test]
fn l8_no_order_runs_a_callback_after_its_drop_returned() {
    for actors in [
        vec![poller(1), dropper(1)],
        vec![poller(1), dropper(1), dropper(2)],
        vec![poller(1), poller(2), dropper(2)],
        vec![poller(1), poller(2), dropper(1), dropper(2)],
    ] {
        let world = ListenerWorld::new(2, actors, Twin::Faithful);
        let orders = explore(&world, &fine).unwrap();
        println!("{} actors: {orders} orders", world.actors.len());
        assert!(orders > 10);
    }
}

#[test]
fn l8_a_callback_that_drops_its_own_handle_waits_for_nobody() {
    let mut world = ListenerWorld::new(2, vec![poller(1), poller(2), dropper(2)], Twin::Faithful);
    world.drops_itself = Some(1);
    let once = |world: &ListenerWorld| {
        let times = world.delivered.iter().filter(|(id, _)| *id == 1).count();
        match times {
            1 if !world.alive.contains(&1) => Ok(()),
            _ => Err(format!("called {times} times")),
        }
    };
    explore(&world, &once).unwrap();
}

#[test]
fn l8_each_handler_gets_the_last_content_in_every_order() {
    let world = ListenerWorld::new(2, vec![poller(1), poller(2)], Twin::Faithful);
    let all = |world: &ListenerWorld| {
        for id in [1, 2] {
            let delivered: Vec<u8> = world
                .delivered
                .iter()
                .filter(|(to, _)| *to == id)
                .map(|(_, text)| *text)
                .collect();
            if delivered != [1, 2] && delivered != [2, 1] {
                return Err(format!("{id} got {delivered:?}"));
            }
        }
        Ok(())
    };
    explore(&world, &all).unwrap();
}

#[test]
fn l8_the_broken_twins_are_found_out() {
    for twin in [Twin::DoesNotWait, Twin::EndsTooSoon] {
        let world = ListenerWorld::new(1, vec![poller(1), dropper(1)], twin);
        let fault = explore(&world, &fine).expect_err("the twin passed");
        println!("{twin:?}: {fault}");
    }
}
