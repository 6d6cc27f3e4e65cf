//! [`Server`]: the decode loop of two models, each with a paged KV cache.
//!
//! In each step every running sequence appends a token, and allocates a block if its last one is full. If there is none,
//! the newest sequence of the model is preempted: its blocks are freed, and it goes to the front of the queue to be
//! computed again. Then waiting requests are admitted, in order, whose prompts fit.
//!
//! # The floor
//! With lent memory, a model runs more sequences than its guarantee has room for. If the other model needs the memory,
//! some of them must leave, and the guarantee must still do all that a fixed half would have done. So the server also
//! counts, without memory, what it would do with fixed halves: the *floor*. It keeps these rules:
//!
//! FLOOR1 after each step, a sequence that runs on the floor has been served, or has at least as many tokens as there.
//! The blocks of these tokens fit in the guarantees.
//!
//! FLOOR2 only other sequences, the *guests*, are preempted, and only blocks of later tokens are taken from a sequence.
//!
//! FLOOR3 a request is refused only after the floor has refused it.
//!
//! So no request is served later than with fixed halves. The floor needs no length of an answer in advance: it is never
//! ahead.

use std::collections::VecDeque;

use crate::Failure;
use crate::cache::{Counted, HALF_BLOCKS, Memory};
use crate::day::Request;
use crate::report::{Outcome, Report};

/// Tokens whose keys and values are in one block.
pub(crate) const BLOCK_TOKENS: usize = 16;
/// Sequences of a model that run at the same time, at most.
pub(crate) const MAX_BATCH: usize = 96;
/// Steps after which a waiting request is refused.
const MAX_WAIT: u32 = 40;
/// Bytes of activations for each sequence.
pub(crate) const ACTIVATION_BYTES: usize = 32 << 10;

pub(crate) const MODELS: [usize; 2] = [0, 1];

pub(crate) struct Server {
    pub(crate) memory: Box<dyn Memory>,
    pub(crate) models: [Model; 2],
    pub(crate) floor: Option<Box<Self>>,
    pub(crate) now: u32,
    pub(crate) report: Report,
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) queue: VecDeque<Waiting>,
    /// In the order of admission.
    pub(crate) running: Vec<Sequence>,
}

pub(crate) struct Waiting {
    pub(crate) request: Request,
    /// Step of its arrival or of its preemption.
    pub(crate) since: u32,
}

pub(crate) struct Sequence {
    pub(crate) request: Request,
    /// Tokens of the prompt, and of the answer so far.
    pub(crate) tokens: usize,
    /// The block table.
    pub(crate) blocks: Vec<usize>,
}

impl Server {
    pub(crate) fn new(memory: Box<dyn Memory>) -> Self {
        Self {
            memory,
            models: Default::default(),
            floor: None,
            now: 0,
            report: Report::default(),
        }
    }

    /// Makes a server that serves at least what fixed halves of the memory would.
    pub(crate) fn with_floor(memory: Box<dyn Memory>) -> Self {
        let floor = Self::new(Box::new(Counted::default()));
        Self {
            floor: Some(Box::new(floor)),
            ..Self::new(memory)
        }
    }

    /// Serves the requests of a day, and calls `after_step` after each step.
    pub(crate) fn run(
        mut self,
        requests: &[Request],
        mut after_step: impl FnMut(&Self),
    ) -> Result<Report, Failure> {
        let outcomes = vec![None; requests.len()];
        if let Some(floor) = &mut self.floor {
            floor.report.outcomes.clone_from(&outcomes);
        }
        self.report.outcomes = outcomes;
        let mut arriving = requests.iter().peekable();
        while arriving.peek().is_some() || self.models.iter().any(|model| !model.is_idle()) {
            let now = self.now;
            let arrivals = std::iter::from_fn(|| arriving.next_if(|next| next.arrival <= now));
            let arrivals: Vec<Request> = arrivals.copied().collect();
            self.step(&arrivals)?;
            after_step(&self);
        }
        (self.report.peak_bytes, self.report.driver_calls) = self.memory.usage();
        Ok(self.report)
    }

    fn step(&mut self, arrivals: &[Request]) -> Result<(), Failure> {
        if let Some(floor) = &mut self.floor {
            floor.step(arrivals)?;
        }
        let since = self.now;
        for &request in arrivals {
            let queue = &mut self.models[request.model].queue;
            queue.push_back(Waiting { request, since });
        }
        // First all that frees memory or is certain to have it.
        for model in MODELS {
            self.finish(model)?;
        }
        for model in MODELS {
            self.decode(model)?;
            self.admit_as_floor(model)?;
        }
        for model in MODELS {
            self.admit(model)?;
            self.refuse(model);
            self.activate(model)?;
        }
        self.now += 1;
        Ok(())
    }

    /// Ends the sequences whose last token this step computes. It is in the answer, but never in the cache.
    fn finish(&mut self, model: usize) -> Result<(), Failure> {
        let is_last = |sequence: &Sequence| sequence.tokens + 1 == sequence.request.total();
        while let Some(index) = self.models[model].running.iter().position(is_last) {
            let request = self.remove(model, index)?.request;
            let step = self.now;
            self.report.outcomes[request.id] = Some(Outcome::Served { step });
            self.report.served += 1;
            self.report.tokens += request.output as u64;
        }
        Ok(())
    }

    /// Appends a token to each running sequence.
    fn decode(&mut self, model: usize) -> Result<(), Failure> {
        let running = self.models[model].running.iter();
        let ids: Vec<usize> = running.map(|sequence| sequence.request.id).collect();
        for id in ids {
            while let Some(sequence) = self.models[model].find(id) {
                if sequence.blocks.len() >= blocks_of(sequence.tokens + 1) {
                    sequence.tokens += 1;
                    break;
                }
                if !self.extend(model, id)? && !self.preempt_newest(model)? {
                    // It is ahead of the floor, and waits.
                    break;
                }
            }
        }
        Ok(())
    }

    /// Admits what the floor has admitted (FLOOR1).
    fn admit_as_floor(&mut self, model: usize) -> Result<(), Failure> {
        let Some(floor) = &self.floor else {
            return Ok(());
        };
        let running = floor.models[model].running.iter();
        let ids: Vec<usize> = running.map(|sequence| sequence.request.id).collect();
        for id in ids {
            let queue = &mut self.models[model].queue;
            let Some(place) = queue.iter().position(|waiting| waiting.request.id == id) else {
                continue;
            };
            let waiting = queue.remove(place);
            if self.models[model].running.len() == MAX_BATCH {
                self.preempt_newest(model)?;
            }
            if !self.start(model, waiting)? {
                return Err("there is no memory for a guaranteed prompt".into());
            }
        }
        Ok(())
    }

    /// Admits waiting requests in order, as long as there is room for their prompts and for the next step.
    fn admit(&mut self, model: usize) -> Result<(), Failure> {
        while let Some(next) = self.models[model].queue.front() {
            let others = self.models[model].running.len();
            let blocks = blocks_of(next.request.prompt) + others.div_ceil(BLOCK_TOKENS);
            let has_room = self.used_blocks(model) + blocks <= self.memory.max_blocks();
            // A prompt that fits in the memory must not wait for room that it leaves.
            if others == MAX_BATCH || others > 0 && !has_room {
                break;
            }
            let waiting = self.models[model].queue.pop_front();
            if !self.start(model, waiting)? {
                break;
            }
        }
        Ok(())
    }

    /// Refuses requests that have waited too long (FLOOR3).
    fn refuse(&mut self, model: usize) {
        let (floor, report, step) = (&self.floor, &mut self.report, self.now);
        self.models[model].queue.retain(|waiting| {
            let id = waiting.request.id;
            let refuses =
                |floor: &Self| matches!(floor.report.outcomes[id], Some(Outcome::Refused { .. }));
            let stays = step - waiting.since < MAX_WAIT
                || floor.as_ref().is_some_and(|floor| !refuses(floor));
            if !stays {
                report.outcomes[id] = Some(Outcome::Refused { step });
                report.refused += 1;
                report.tokens_before_refusal.get_or_insert(report.tokens);
            }
            stays
        });
    }

    /// Allocates the activations of the step.
    fn activate(&mut self, model: usize) -> Result<(), Failure> {
        loop {
            let bytes = self.models[model].running.len() * ACTIVATION_BYTES;
            if bytes == 0 || self.memory.activate(bytes)? {
                return Ok(());
            }
            if !self.make_room()? && !self.preempt_newest(model)? {
                return Err("there is no memory for guaranteed activations".into());
            }
        }
    }

    /// Computes a prompt. Returns whether there was a request and memory; without memory, the request waits again.
    fn start(&mut self, model: usize, waiting: Option<Waiting>) -> Result<bool, Failure> {
        let Some(waiting) = waiting else {
            return Ok(false);
        };
        let Request { id, prompt, .. } = waiting.request;
        self.models[model].running.push(Sequence {
            request: waiting.request,
            tokens: prompt,
            blocks: Vec::new(),
        });
        for _ in 0..blocks_of(prompt) {
            if !self.extend(model, id)? {
                if let Some(index) = self.models[model].position(id) {
                    self.remove(model, index)?;
                    self.models[model].queue.push_front(waiting);
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Allocates the next block of a sequence. Returns whether there was memory, of which there is enough for as many
    /// tokens as on the floor.
    fn extend(&mut self, model: usize, id: usize) -> Result<bool, Failure> {
        loop {
            let floor = blocks_of(self.floor_tokens(model, id));
            let Some(sequence) = self.models[model].find(id) else {
                // To answer a recall, it was preempted itself.
                return Ok(false);
            };
            if let Some(block) = self.memory.alloc(model)? {
                sequence.blocks.push(block);
                self.memory.write(model, block, id)?;
                return Ok(true);
            }
            let is_certain = sequence.blocks.len() < floor;
            if self.make_room()? {
                continue;
            }
            if !is_certain {
                return Ok(false);
            }
            if !self.shed(model)? {
                return Err("there is no memory for a guaranteed token".into());
            }
        }
    }

    /// Returns the tokens that a sequence has on the floor; 0 if it does not run there.
    pub(crate) fn floor_tokens(&self, model: usize, id: usize) -> usize {
        let running = self
            .floor
            .iter()
            .flat_map(|floor| &floor.models[model].running);
        let mut tokens = running.filter(|sequence| sequence.request.id == id);
        tokens.next().map_or(0, |sequence| sequence.tokens)
    }

    /// Returns the blocks in use, of those that a model may use.
    fn used_blocks(&self, model: usize) -> usize {
        let models = match self.memory.max_blocks() > HALF_BLOCKS {
            true => &self.models[..],
            false => &self.models[model..=model],
        };
        let running = models.iter().flat_map(|model| &model.running);
        running.map(|sequence| sequence.blocks.len()).sum()
    }

    /// Checks that no two places of block tables have the same block, and FLOOR1.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        for (number, model) in self.models.iter().enumerate() {
            let mut seen = std::collections::HashSet::new();
            for sequence in &model.running {
                assert_eq!(sequence.blocks.len(), blocks_of(sequence.tokens));
                assert!(sequence.blocks.iter().all(|block| seen.insert(*block)));
            }
            for floor in self
                .floor
                .iter()
                .flat_map(|floor| &floor.models[number].running)
            {
                let id = floor.request.id;
                match model
                    .running
                    .iter()
                    .find(|sequence| sequence.request.id == id)
                {
                    Some(sequence) => assert!(sequence.tokens >= floor.tokens),
                    None => assert!(self.report.outcomes[id].is_some()),
                }
            }
        }
    }
}

impl Model {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }

    fn position(&self, id: usize) -> Option<usize> {
        let mut running = self.running.iter();
        running.position(|sequence| sequence.request.id == id)
    }

    fn find(&mut self, id: usize) -> Option<&mut Sequence> {
        let mut running = self.running.iter_mut();
        running.find(|sequence| sequence.request.id == id)
    }
}

impl Request {
    /// Returns the tokens of the prompt and the answer.
    const fn total(&self) -> usize {
        self.prompt + self.output
    }
}

/// Returns how many blocks hold as many tokens.
pub(crate) const fn blocks_of(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}
