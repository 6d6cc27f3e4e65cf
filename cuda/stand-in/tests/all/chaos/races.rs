//! Random programs that use everything that orders work, compared with a model that knows for every
//! two operations whether one is ordered before the other. There must be a finding exactly if two
//! unordered operations conflict.

use std::cell::Cell;
use std::collections::BTreeMap;

use larder_cuda_abi::Code;
use larder_cuda_abi::constants as c;

use super::api::*;

thread_local! {
    /// Whether work of the program has failed: memory of a pool was used while it was not
    /// allocated, which is a race too.
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

#[track_caller]
fn ok(code: Code) {
    if code == Code::ILLEGAL_ADDRESS || FAILED.get() {
        FAILED.set(true);
    } else {
        assert_eq!(code, Code::SUCCESS);
    }
}

#[track_caller]
fn made<T: Default>(create: impl FnOnce(&mut T) -> Code) -> T {
    let mut value = T::default();
    ok(create(&mut value));
    value
}

/// Size in bytes of each piece of memory that the programs use.
const BYTES: usize = 16;
const STREAMS: usize = 5;
const EVENTS: usize = 4;

/// One use of memory: the memory, the range, and whether it writes.
#[derive(Clone, Copy)]
struct Use {
    memory: usize,
    from: usize,
    to: usize,
    writes: bool,
}

impl Use {
    fn meets(&self, other: &Self) -> bool {
        self.memory == other.memory
            && (self.writes || other.writes)
            && self.from < other.to
            && other.from < self.to
    }
}

/// Tells for each operation whether it is ordered before a given point.
type Before = Vec<bool>;

fn learn(to: &mut Before, from: &Before) {
    to.resize(to.len().max(from.len()), false);
    to.iter_mut().zip(from).for_each(|(to, from)| *to |= from);
}

/// All operations, with those that are ordered before each. Slow, but simple.
#[derive(Default)]
struct Model {
    uses: Vec<Vec<Use>>,
    races: bool,
    host: Before,
    /// The operations ordered before the next one of each stream. The last stream is the legacy
    /// one.
    streams: Vec<Before>,
    blocking: Vec<bool>,
    /// Work of destroyed streams: all of it, and the part that the legacy stream waits for.
    gone: Before,
    gone_blocking: Before,
}

impl Model {
    fn new(blocking: &[bool]) -> Self {
        Self {
            streams: vec![Before::new(); blocking.len() + 1],
            blocking: blocking.to_vec(),
            ..Self::default()
        }
    }

    /// Returns the operations ordered before one that is submitted now.
    fn before(&self, stream: usize) -> Before {
        let mut before = self.host.clone();
        learn(&mut before, &self.streams[stream]);
        let legacy = self.blocking.len();
        if stream == legacy {
            for other in (0..legacy).filter(|other| self.blocking[*other]) {
                learn(&mut before, &self.streams[other]);
            }
            learn(&mut before, &self.gone_blocking);
        } else if self.blocking[stream] {
            learn(&mut before, &self.streams[legacy]);
        }
        before
    }

    fn submit(&mut self, stream: usize, uses: &[Use]) {
        let before = self.before(stream);
        self.streams[stream] = self.add(before, uses);
    }

    /// Adds an operation. Returns the operations ordered before its successors.
    fn add(&mut self, mut before: Before, uses: &[Use]) -> Before {
        before.resize(self.uses.len(), false);
        for (other, known) in self.uses.iter().zip(&before) {
            let meets = |one: &Use| other.iter().any(|other| one.meets(other));
            self.races |= !known && uses.iter().any(meets);
        }
        self.uses.push(uses.to_vec());
        before.push(true);
        before
    }

    fn wait(&mut self, stream: usize, event: &Before) {
        learn(&mut self.streams[stream], event);
        self.submit(stream, &[]);
    }

    fn sync(&mut self, stream: usize) {
        let mut known = self.streams[stream].clone();
        if stream == self.blocking.len() {
            known = self.before(stream);
        }
        learn(&mut self.host, &known);
    }

    fn sync_all(&mut self) {
        for stream in self.streams.clone() {
            learn(&mut self.host, &stream);
        }
        let gone = self.gone.clone();
        learn(&mut self.host, &gone);
    }

    /// Replaces a destroyed stream with a new one.
    fn replace(&mut self, stream: usize) {
        let old = std::mem::take(&mut self.streams[stream]);
        learn(&mut self.gone, &old);
        if self.blocking[stream] {
            learn(&mut self.gone_blocking, &old);
        }
    }
}

/// A graph: the uses of each node, and the nodes on which it depends.
struct Graph {
    exec: usize,
    nodes: Vec<(Vec<Use>, Vec<usize>)>,
    /// The operations ordered before work that follows the newest launch.
    last: Before,
}

struct Program {
    draw: Draw,
    model: Model,
    streams: Vec<usize>,
    blocking: Vec<bool>,
    events: Vec<(usize, Option<Before>)>,
    /// Addresses of each piece of memory.
    memories: Vec<Vec<u64>>,
    graphs: Vec<Graph>,
    /// Addresses of pool memory by its number in the model.
    pooled: BTreeMap<usize, u64>,
    next_memory: usize,
    log: Vec<String>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let blocking = [true, true, false, false, true];
        let mut streams: Vec<usize> = (0..STREAMS)
            .map(|index| {
                let flags = if blocking[index] {
                    0
                } else {
                    c::STREAM_NON_BLOCKING
                };
                made(|stream| cuStreamCreate(stream, flags))
            })
            .collect();
        // The thread's own default stream is one of them.
        streams[4] = 2;
        streams.push(0);
        let handle = made(|handle| cuMemCreate(handle, GRANULARITY, &physical(0), 0));
        let memories = vec![
            vec![map(handle, GRANULARITY), map(handle, GRANULARITY)],
            vec![made(|at| cuMemAlloc_v2(at, BYTES))],
            vec![made(|at| cuMemHostAlloc(at, BYTES, 0)) as u64],
        ];
        Self {
            draw: Draw::new(seed),
            model: Model::new(&blocking),
            streams,
            blocking: blocking.to_vec(),
            events: (0..EVENTS).map(|_| (event(), None)).collect(),
            next_memory: memories.len(),
            memories,
            graphs: Vec::new(),
            pooled: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn stream(&mut self) -> usize {
        self.draw.below(self.streams.len())
    }

    /// Draws some bytes of some memory. Returns the use for the model, and the address.
    fn place(&mut self, bytes: usize, writes: bool) -> (Use, u64) {
        let pooled: Vec<(usize, u64)> = self.pooled.iter().map(|(n, at)| (*n, *at)).collect();
        let (memory, at) = match self.draw.below(4) {
            3 if !pooled.is_empty() => self.draw.one(&pooled),
            which => {
                let memory = which % self.memories.len();
                (memory, self.draw.one(&self.memories[memory].clone()))
            }
        };
        let from = self.draw.below(BYTES - bytes + 1);
        let used = Use {
            memory,
            from,
            to: from + bytes,
            writes,
        };
        (used, at + from as u64)
    }

    /// Queues a fill or a copy on a stream, which may be in a capture.
    fn work(&mut self, stream: usize) -> Vec<Use> {
        let bytes = 1 + self.draw.below(6);
        let (to, at) = self.place(bytes, true);
        if self.draw.rarely(2) {
            ok(cuMemsetD8Async(at, 1, bytes, self.streams[stream]));
            return vec![to];
        }
        let (from, source) = self.place(bytes, false);
        ok(cuMemcpyDtoDAsync_v2(
            at,
            source,
            bytes,
            self.streams[stream],
        ));
        vec![to, from]
    }

    fn step(&mut self) {
        let stream = self.stream();
        let what = self.draw.below(21);
        self.log.push(format!("{what} in {stream}"));
        match what {
            0..=5 => {
                let uses = self.work(stream);
                self.model.submit(stream, &uses);
            }
            6..=8 => {
                let event = self.draw.below(EVENTS);
                ok(cuEventRecord(self.events[event].0, self.streams[stream]));
                self.model.submit(stream, &[]);
                self.events[event].1 = Some(self.model.streams[stream].clone());
            }
            9..=11 => {
                let event = self.draw.below(EVENTS);
                ok(cuStreamWaitEvent(
                    self.streams[stream],
                    self.events[event].0,
                    0,
                ));
                if let Some(event) = self.events[event].1.clone() {
                    self.model.wait(stream, &event);
                }
            }
            12 => self.host_waits(stream),
            13 => self.read_back(stream),
            14 => self.replace(stream),
            15 | 16 => self.allocate(stream),
            17 => self.free(stream),
            18 => self.capture(),
            _ => self.launch(stream),
        }
    }

    fn host_waits(&mut self, stream: usize) {
        let event = self.draw.below(EVENTS);
        match self.draw.below(7) {
            0 => {
                ok(cuStreamSynchronize(self.streams[stream]));
                self.model.sync(stream);
            }
            1 => {
                ok(cuEventSynchronize(self.events[event].0));
                self.host_knows(event);
            }
            2 if cuEventQuery(self.events[event].0) == Code::SUCCESS => self.host_knows(event),
            // A query of the legacy stream says nothing about the others.
            3 if stream < STREAMS && cuStreamQuery(self.streams[stream]) == Code::SUCCESS => {
                self.model.sync(stream);
            }
            4 => {
                // A free waits for the whole device.
                let at = made(|at| cuMemAlloc_v2(at, BYTES));
                if at != 0 {
                    ok(cuMemFree_v2(at));
                    self.model.sync_all();
                }
            }
            5 if self.draw.rarely(3) => {
                ok(cuCtxSynchronize());
                self.model.sync_all();
            }
            _ => {}
        }
    }

    fn host_knows(&mut self, event: usize) {
        if let Some(before) = self.events[event].1.clone() {
            learn(&mut self.model.host, &before);
        }
    }

    /// Copies to pageable memory, in a call that waits for the copy.
    fn read_back(&mut self, stream: usize) {
        let (used, at) = self.place(4, false);
        let mut bytes = [0_u8; 4];
        ok(cuMemcpyDtoHAsync_v2(
            bytes.as_mut_ptr() as usize,
            at,
            4,
            self.streams[stream],
        ));
        self.model.submit(stream, &[used]);
        let known = self.model.streams[stream].clone();
        learn(&mut self.model.host, &known);
    }

    fn replace(&mut self, stream: usize) {
        if self.streams[stream] <= 2 {
            return;
        }
        ok(cuStreamDestroy_v2(self.streams[stream]));
        let flags = u32::from(!self.blocking[stream]);
        self.streams[stream] = made(|stream| cuStreamCreate(stream, flags));
        self.model.replace(stream);
    }

    fn allocate(&mut self, stream: usize) {
        if self.pooled.len() >= 2 {
            return;
        }
        let at = made(|at| cuMemAllocAsync(at, BYTES, self.streams[stream]));
        let memory = self.next_memory;
        self.next_memory += 1;
        self.model.submit(stream, &[whole(memory)]);
        self.pooled.insert(memory, at);
    }

    fn free(&mut self, stream: usize) {
        let Some((memory, at)) = self.pooled.pop_first() else {
            return;
        };
        ok(cuMemFreeAsync(at, self.streams[stream]));
        self.model.submit(stream, &[whole(memory)]);
    }

    /// Captures work on two streams as a graph.
    fn capture(&mut self) {
        if self.graphs.len() >= 2 {
            return;
        }
        let pooled = std::mem::take(&mut self.pooled);
        let (one, two, event) = (2, 3, made(|event| cuEventCreate(event, 0)));
        let begin = cuStreamBeginCapture_v2(self.streams[one], c::CAPTURE_MODE_RELAXED);
        ok(begin);
        let mut nodes: Vec<(Vec<Use>, Vec<usize>)> = Vec::new();
        let mut ends: [Vec<usize>; 2] = [Vec::new(), Vec::new()];
        let mut forked = false;
        for _ in 0..2 + self.draw.below(4) {
            match self.draw.below(4) {
                0 if !forked => {
                    ok(cuEventRecord(event, self.streams[one]));
                    ok(cuStreamWaitEvent(self.streams[two], event, 0));
                    ends[1] = ends[0].clone();
                    forked = true;
                }
                1 if forked => {
                    ok(cuEventRecord(event, self.streams[two]));
                    ok(cuStreamWaitEvent(self.streams[one], event, 0));
                    let more = ends[1].clone();
                    ends[0].extend(more);
                }
                _ => {
                    let side = usize::from(forked && self.draw.rarely(2));
                    let uses = self.work([one, two][side]);
                    let after = std::mem::take(&mut ends[side]);
                    nodes.push((uses, after));
                    ends[side] = vec![nodes.len() - 1];
                }
            }
        }
        if forked {
            ok(cuEventRecord(event, self.streams[two]));
            ok(cuStreamWaitEvent(self.streams[one], event, 0));
        }
        let graph = made(|graph| cuStreamEndCapture(self.streams[one], graph));
        ok(cuEventDestroy_v2(event));
        let exec = made(|exec| cuGraphInstantiateWithFlags(exec, graph, 0));
        ok(cuGraphDestroy(graph));
        self.pooled = pooled;
        self.graphs.push(Graph {
            exec,
            nodes,
            last: Before::new(),
        });
    }

    fn launch(&mut self, stream: usize) {
        if self.graphs.is_empty() {
            return;
        }
        let index = self.draw.below(self.graphs.len());
        let graph = &mut self.graphs[index];
        ok(cuGraphLaunch(graph.exec, self.streams[stream]));
        self.model.wait(stream, &graph.last);
        let start = self.model.streams[stream].clone();
        let mut done: Vec<Before> = Vec::new();
        for (uses, after) in &graph.nodes {
            let mut before = start.clone();
            after
                .iter()
                .for_each(|index| learn(&mut before, &done[*index]));
            done.push(self.model.add(before, uses));
        }
        let mut end = start;
        done.iter().for_each(|done| learn(&mut end, done));
        self.model.wait(stream, &end);
        graph.last = self.model.streams[stream].clone();
    }
}

fn whole(memory: usize) -> Use {
    Use {
        memory,
        from: 0,
        to: BYTES,
        writes: true,
    }
}

/// Runs one program. Returns whether it races.
fn check(seed: u64, steps: usize) -> bool {
    larder_stand_in_reset(1, 1 << 30);
    ok(cuCtxSetCurrent(0));
    made(|context| cuCtxCreate_v2(context, 0, 0));
    let mut program = Program::new(seed);
    larder_stand_in_schedule(u32::from(!seed.is_multiple_of(4)), seed);
    FAILED.set(false);
    for _ in 0..steps {
        program.step();
        if FAILED.get() {
            break;
        }
    }
    ok(cuCtxSynchronize());
    larder_stand_in_schedule(0, 0);
    let (found, races) = (findings(), program.model.races);
    if FAILED.get() {
        assert!(races && !found.is_empty(), "seed {seed}: {found}");
        return true;
    }
    assert_eq!(
        found.contains("race"),
        races,
        "seed {seed}: {found} {:?}",
        program.log
    );
    assert!(races || found.is_empty(), "seed {seed}: {found}");
    races
}

#[test]
fn there_is_a_finding_exactly_when_the_model_sees_a_race() {
    let _gpu = gpu();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let programs = number("LARDER_RACES").unwrap_or(3000);
    let (mut racy, mut clean) = (0, 0);
    for seed in 0..programs {
        // The programs are short: longer ones would all race.
        match check(seed, 4 + seed as usize % 12) {
            true => racy += 1,
            false => clean += 1,
        }
    }
    println!("{racy} programs with races, {clean} without");
    assert!(racy > programs / 5 && clean > programs / 5);
}
