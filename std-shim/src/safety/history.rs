//! [`History`]: the threads and stacks that allocated and freed each block of a checking heap.

use core::cmp::Reverse;

use super::blocks::{Known, UseState};
use crate::block_table::{BlockTable, Zeroes};
use crate::config::Config;
use crate::os::stack::{LoadedFiles, thread_number, walk};
use crate::process::PROCESS;
use crate::thread::with_local;

/// Maximum number of frames recorded of a stack, beginning with the innermost.
const FRAMES: usize = Config::MAX_STACK_FRAMES as usize;

/// A thread and its stack at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here {
    thread: u32,
    frames: [usize; FRAMES],
}

impl Here {
    /// Walks the calling thread's stack, beginning with the function that has this variable.
    /// Returns `None` unless the heap is checking.
    #[inline(always)]
    pub(super) fn in_function_with<T>(variable: &T) -> Option<Self> {
        match PROCESS.tuning.config().checking {
            true => Some(Self::walk((&raw const *variable).addr())),
            false => None,
        }
    }

    /// Walks the calling thread's stack, beginning with the caller of the function that has a
    /// variable at the address `inner`.
    #[inline(always)]
    pub(super) fn walk(inner: usize) -> Self {
        Self::walk_frames(inner, PROCESS.tuning.config().stack_frames as usize)
    }

    /// Walks the calling thread's stack in a signal handler, beginning with the interrupted
    /// instruction. Its frame is the address behind it, since a frame is a return address.
    pub(super) fn interrupted_at(instruction: usize) -> Self {
        let mut here = Self::walk_frames(0, FRAMES);
        let first = here.frames().position(|frame| frame == instruction);
        here.frames.rotate_left(first.unwrap_or(0));
        let wanted = PROCESS.tuning.config().stack_frames as usize;
        let kept = wanted.min(FRAMES - first.unwrap_or(0));
        here.frames.get_mut(kept..).unwrap_or_default().fill(0);
        if let (Some(_), [first, ..]) = (first, &mut here.frames) {
            *first += 1;
        }
        here
    }

    #[inline(always)]
    fn walk_frames(inner: usize, wanted: usize) -> Self {
        let mut frames = [0; FRAMES];
        // The unwinder may allocate: that allocation records no stack.
        // SAFETY: called from the verbs, which do not use the thread's part here.
        if !unsafe { with_local(|local| local.set_walking(true)) } {
            walk(inner, frames.get_mut(..wanted).unwrap_or_default());
            // SAFETY: called from the verbs, which do not use the thread's part here.
            unsafe { with_local(|local| local.set_walking(false)) };
        }
        Self {
            thread: thread_number(),
            frames,
        }
    }

    pub(super) const fn thread(&self) -> u32 {
        self.thread
    }

    /// Returns the return addresses, the innermost first.
    pub(super) fn frames(&self) -> impl Iterator<Item = usize> {
        self.frames.iter().copied().take_while(|&frame| frame != 0)
    }

    /// Returns the code that called the allocator. Leaves the heap's own frames out, unless the
    /// heap is a part of the program.
    fn caller(&self, files: &LoadedFiles) -> Caller {
        let is_heap = |frame: &usize| files.heap != files.program && files.heap.contains(frame);
        let mut callers = self.frames().skip_while(is_heap);
        match callers.position(|frame| files.program.contains(&frame)) {
            Some(0) => Caller::Program,
            Some(_) => Caller::LibraryOfProgram,
            None if self.frames().next().is_some() => Caller::Library,
            None => Caller::Unknown,
        }
    }

    /// Returns the key of the stack: a number that is not 0 and that no other stack is likely to
    /// have.
    fn key(&self) -> usize {
        let mix = |key: u64, &frame: &usize| {
            // After FxHash: the product carries a difference up, the rotation down.
            (key.rotate_left(23) ^ frame as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        };
        self.frames.iter().fold(0, mix) as usize | 1
    }
}

/// A [`Here`] with the key of its stack in the table.
#[derive(Clone, Copy, Debug)]
struct KeyedMoment {
    stack: usize,
    thread: u32,
}

/// The stacks that allocated and freed a block; 0 for an unknown stack.
#[derive(Clone, Copy, Debug)]
struct BlockStacks {
    allocated: KeyedMoment,
    freed: KeyedMoment,
}

// SAFETY: all zeros are numbers.
unsafe impl Zeroes for BlockStacks {}

/// A stack, and the count of its blocks.
#[derive(Clone, Copy)]
struct CountedStack {
    frames: [usize; FRAMES],
    blocks: usize,
    bytes: usize,
}

// SAFETY: all zeros are numbers.
unsafe impl Zeroes for CountedStack {}

/// The blocks that one stack allocated and that are not freed.
#[derive(Clone, Copy)]
pub(super) struct Leak {
    pub(super) blocks: usize,
    pub(super) bytes: usize,
    pub(super) caller: Caller,
    pub(super) allocated: Here,
}

/// The code that called the allocator. C's `strdup` is a library that the program called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Caller {
    Program,
    LibraryOfProgram,
    Library,
    Unknown,
}

/// The stacks of blocks by address, and all distinct stacks, each stored once. Entries are missing
/// if there was no memory for them.
pub(super) struct History {
    lives: BlockTable<BlockStacks>,
    stacks: BlockTable<CountedStack>,
}

impl History {
    pub(super) const fn new() -> Self {
        Self {
            lives: BlockTable::new(),
            stacks: BlockTable::new(),
        }
    }

    fn moment(&mut self, here: &Here) -> KeyedMoment {
        let stack = here.key();
        if self.stacks.get_mut(stack).is_none() {
            let new = CountedStack {
                frames: here.frames,
                blocks: 0,
                bytes: 0,
            };
            self.stacks.insert(stack, new).ok();
        }
        KeyedMoment {
            stack,
            thread: here.thread,
        }
    }

    pub(super) fn allocated(&mut self, block: *mut u8, here: &Here) {
        let freed = KeyedMoment {
            stack: 0,
            thread: 0,
        };
        let allocated = self.moment(here);
        let life = BlockStacks { allocated, freed };
        self.lives.insert(block.addr(), life).ok();
    }

    pub(super) fn freed(&mut self, block: *mut u8, here: &Here) {
        let moment = self.moment(here);
        if let Some(life) = self.lives.get_mut(block.addr()) {
            life.freed = moment;
        }
    }

    pub(super) fn forget(&mut self, block: *mut u8) {
        self.lives.remove(block.addr());
    }

    /// Returns the stacks that allocated and freed a block, if they are known.
    pub(super) fn of(&mut self, block: *mut u8) -> [Option<Here>; 2] {
        let Some(BlockStacks { allocated, freed }) = self.lives.get(block.addr()) else {
            return [None; 2];
        };
        [allocated, freed].map(|moment| {
            let frames = self.stacks.get(moment.stack)?.frames;
            Some(Here {
                thread: moment.thread,
                frames,
            })
        })
    }

    /// Counts the used blocks by the stack that allocated them. Returns the number of such stacks.
    pub(super) fn count(&mut self, blocks: impl Iterator<Item = (usize, Known)>) -> usize {
        let mut places = 0;
        for (block, known) in blocks.filter(|(_, known)| known.state == UseState::Used) {
            let Some(life) = self.lives.get(block) else {
                continue;
            };
            if let Some(stack) = self.stacks.get_mut(life.allocated.stack) {
                places += usize::from(stack.blocks == 0);
                stack.blocks += 1;
                stack.bytes += known.bytes;
            }
        }
        places
    }

    /// Removes the next stack with counted bytes, and returns it: by caller, and then the one with
    /// the most bytes.
    pub(super) fn take_next(&mut self, files: &LoadedFiles) -> Option<Leak> {
        let counted = self.stacks.entries().filter(|(_, stack)| stack.blocks > 0);
        let leaks = counted.map(|(key, stack)| {
            let CountedStack {
                frames,
                blocks,
                bytes,
            } = stack;
            let allocated = Here { thread: 0, frames };
            let leak = Leak {
                blocks,
                bytes,
                caller: allocated.caller(files),
                allocated,
            };
            (key, leak)
        });
        let (key, leak) =
            leaks.min_by_key(|(_, leak)| (leak.caller, Reverse((leak.bytes, leak.blocks))))?;
        if let Some(stack) = self.stacks.get_mut(key) {
            (stack.blocks, stack.bytes) = (0, 0);
        }
        Some(leak)
    }
}
