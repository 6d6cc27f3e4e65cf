//! The acts on a player's blocks: allocating, freeing, and passing them on.

use larder_core::AllocError;
use larder_cuda::{DeviceAllocError, Event, EventConfig};

use crate::common::MIB;
use crate::programs::buffer::Bytes;
use crate::programs::player::{Held, Parcel, Player};
use crate::programs::words::{Missing, Outcome, Part, Words, number, stream};

impl Player {
    /// `alloc BLOCK STREAM BYTES`
    pub(crate) fn alloc(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let (stream, queue) = self.stream_of(words)?;
        let bytes = words.number()?;
        if self.blocks.contains_key(name) {
            return Err(Missing("a free name").into());
        }
        let memory = self.memory()?.clone();
        let (outcome, refusing) = self.with_refusals(|_| memory.alloc(&queue, bytes));
        let block = match outcome {
            Ok(_) if self.is_asleep() => return Err("asleep, it gave a block".into()),
            Ok(block) if block.bytes() < bytes => return Err("a block that is too small".into()),
            Ok(block) => block,
            Err(error) => return self.refused_block(error, refusing),
        };
        let inner = self.captures(stream);
        let at = self.order.step(stream);
        self.next_id += 1;
        let held = Held {
            block,
            id: self.next_id,
            memory: self.current.clone(),
            contents: Bytes::new(),
            ready: false,
            inner,
            remakable: false,
            wrote: at,
            used: at,
            last: stream,
        };
        self.blocks.insert(name.to_owned(), held);
        self.check_live()
    }

    /// Accepts the errors that a drawn program expects of an allocation.
    fn refused_block(&mut self, error: DeviceAllocError, refusing: bool) -> Outcome {
        use DeviceAllocError::{Asleep, Budget, Capturing, Driver, Window};
        let expected = match &error {
            error if error.is_out_of_memory() => true,
            Asleep => self.is_asleep(),
            Window { .. } => self.capture.is_some(),
            // All free memory may have been used last by a stream that another player captures.
            Capturing => self.capture.is_some() || self.world.players > 1,
            Budget(_) | DeviceAllocError::Memory { .. } | DeviceAllocError::Both { .. } => true,
            Driver(_) => refusing,
            _ => false,
        };
        if !self.is_drawn || !expected {
            return Err(error.into());
        }
        let is_full = matches!(
            error,
            DeviceAllocError::Memory {
                reason: AllocError::OutOfMemory(_),
                ..
            }
        );
        let alone = self.world.control.is_some() && self.world.players == 1;
        let empty = self.blocks.is_empty() && self.things.is_empty() && self.is_roomy()?;
        match alone && is_full && empty && !self.refused {
            true => Err("an empty allocator is full".into()),
            false => self.check_live(),
        }
    }

    fn is_roomy(&self) -> Outcome<bool> {
        let device = self.memory()?.device.as_ref();
        Ok(device.is_none_or(|device| device.limit_bytes() >= 6 * MIB))
    }

    /// Checks that the allocators count the program's blocks, if no other player uses them.
    pub(crate) fn check_live(&self) -> Outcome {
        if self.world.control.is_none() || self.world.players > 1 {
            return Ok(());
        }
        for (name, memory) in &self.memories {
            let held = self.blocks.values().filter(|held| held.memory == *name);
            let bytes: u64 = held.clone().map(|held| held.block.bytes()).sum();
            let live = memory.live_bytes();
            let inner = self.blocks.values().any(|held| held.inner);
            let exact = !self.deferred && self.things.is_empty() && !inner;
            if live < bytes || (live > bytes && exact) {
                return Err(format!("{live} bytes are live, the program holds {bytes}").into());
            }
            memory.check(exact, held)?;
        }
        Ok(())
    }

    /// `free BLOCK [STREAM…]`: reads the block on the stream that used it last, and frees it there or on the named
    /// stream, after all its uses. With several streams, the free is a multi-stream free, and nothing orders the uses.
    /// `users TURN` names all streams that use the block, the TURN-th first; `none` waits for all work and names none.
    /// `free-unread` does not read the block first.
    pub(crate) fn free(&mut self, words: &mut Words<'_>, reads: bool) -> Outcome {
        let name = words.next()?;
        let held = self.held(name)?;
        let (last, ready, inner) = (held.last, held.ready, held.inner);
        let mut users: Vec<usize> = Vec::new();
        let mut is_unused = false;
        while let Some(word) = words.maybe() {
            match word {
                "none" => is_unused = true,
                "users" => {
                    users = held.used.streams();
                    let turn = number(words.next()?)? as usize % users.len();
                    users.rotate_left(turn);
                }
                word => users.push(stream(word)?),
            }
        }
        if users.is_empty() && !is_unused {
            users.push(last);
        }
        if reads && ready && !inner && !self.sleeps(name) && !self.captures(last) {
            self.read_part(name, last, Part::Tail)?;
        }
        if is_unused {
            self.wait_for_all()?;
        }
        let used = self.held(name)?.used;
        if users.iter().any(|user| self.captures(*user)) {
            if !inner && self.is_drawn {
                return Err(Missing("a stream that does not capture").into());
            }
        } else if let [stream] = users[..] {
            let is_captured = used.streams().into_iter().any(|used| self.captures(used));
            if is_captured && self.is_drawn {
                return Err(Missing("a stream that does not capture").into());
            }
            self.order.after(stream, &used)?;
        }
        let held = self.blocks.remove(name).ok_or(Missing("the block"))?;
        let owner = self.owner(&held)?;
        let queues: Vec<_> = users
            .iter()
            .map(|user| self.order.streams[*user].clone())
            .collect();
        self.deferred |= users.len() != 1;
        let outcome = match (&queues[..], &self.memories[&held.memory].device) {
            ([queue], _) => owner.free(queue, held.block),
            (queues, Some(device)) => device.free_used_on(queues, held.block),
            _ => return Err("only a device's allocator takes several streams".into()),
        };
        outcome.map_err(|refused| refused.error)?;
        self.check_live()
    }

    /// `raw BLOCK`: turns the block into its raw parts and back, as bindings do.
    pub(crate) fn raw(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let device = self.device()?;
        let mut held = self.blocks.remove(name).ok_or(Missing("the block"))?;
        let bytes = held.block.bytes();
        held.block = device.block_from_raw(held.block.into_raw())?;
        assert_eq!(held.block.bytes(), bytes);
        self.blocks.insert(name.to_owned(), held);
        Ok(())
    }

    /// `order STREAM AFTER`: lets the allocator order one stream after another.
    pub(crate) fn order_after(&mut self, words: &mut Words<'_>) -> Outcome {
        let (stream, queue) = self.stream_of(words)?;
        let (after, behind) = self.stream_of(words)?;
        let device = self.device()?;
        if self.is_drawn && (self.captures(stream) || self.captures(after)) {
            return Err(Missing("a stream that does not capture").into());
        }
        let (outcome, refusing) = self.with_refusals(|_| device.order_after(&queue, &behind));
        match outcome {
            Ok(()) => self.order.ordered(stream, after),
            Err(DeviceAllocError::Driver(_)) if refusing && self.is_drawn => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// `send BLOCK`: passes a block on to another player.
    pub(crate) fn send(&mut self, name: &str) -> Outcome {
        let held = self.held(name)?;
        let (last, used) = (held.last, held.used);
        if self.captures(last) || held.inner || held.remakable {
            return Err(Missing("a stream that does not capture").into());
        }
        self.order.after(last, &used)?;
        let event = Event::new(&self.world.context, EventConfig::default())?;
        event.record(&self.order.streams[last])?;
        let held = self.blocks.remove(name).ok_or(Missing("the block"))?;
        let mut mail = self.world.mail.lock().unwrap();
        mail.push(Parcel { held, event });
        Ok(())
    }

    /// `receive BLOCK STREAM`: takes over a block that some player has sent, or frees it if the name is taken.
    pub(crate) fn receive(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let (stream, queue) = self.stream_of(words)?;
        self.uncaptured(stream)?;
        let parcel = self.world.mail.lock().unwrap().pop();
        let Parcel { mut held, event } = parcel.ok_or(Missing("a block on its way"))?;
        event.wait_on(&queue)?;
        if self.blocks.contains_key(name) {
            let freed = self.owner(&held)?.free(&queue, held.block);
            return Ok(freed.map_err(|refused| refused.error)?);
        }
        let at = self.order.step(stream);
        (held.wrote, held.used, held.last) = (at, at, stream);
        self.blocks.insert(name.to_owned(), held);
        Ok(())
    }
}
