//! Memory that is short: a [`Server`] compacts caches, answers recalls and preempts sequences.

use larder_cuda::BlockMove;

use crate::Failure;
use crate::server::{MODELS, Sequence, Server, Waiting, blocks_of};

impl Server {
    /// Frees memory that is recalled, or that no block uses. Returns whether there was any.
    pub(crate) fn make_room(&mut self) -> Result<bool, Failure> {
        let mut freed = false;
        for model in MODELS {
            freed |= self.compact(model)?;
            while self.memory.recalled_bytes(model) > 0 && self.shed(model)? {
                self.compact(model)?;
                freed = true;
            }
        }
        Ok(freed)
    }

    /// Compacts a model's cache, and renames the blocks in the block tables. Returns whether that freed memory.
    fn compact(&mut self, model: usize) -> Result<bool, Failure> {
        let Some(moves) = self.memory.compact(model)? else {
            return Ok(false);
        };
        let running = self.models[model].running.iter_mut();
        let mut tables: Vec<&mut usize> =
            running.flat_map(|sequence| &mut sequence.blocks).collect();
        for BlockMove { from, to } in moves {
            let place = tables.iter_mut().find(|block| ***block == from);
            **place.ok_or("a block without a sequence has moved")? = to;
            self.report.moved += 1;
        }
        Ok(true)
    }

    /// Frees blocks that are not on the floor (FLOOR2). Returns whether there were any.
    pub(crate) fn shed(&mut self, model: usize) -> Result<bool, Failure> {
        if self.preempt_newest(model)? {
            return Ok(true);
        }
        for index in (0..self.models[model].running.len()).rev() {
            let sequence = &self.models[model].running[index];
            let tokens = self.floor_tokens(model, sequence.request.id);
            if sequence.blocks.len() > blocks_of(tokens) {
                self.report.preempted += 1;
                self.report.wasted_tokens += (sequence.tokens - tokens) as u64;
                self.models[model].running[index].tokens = tokens;
                self.truncate(model, index, blocks_of(tokens))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Preempts the newest guest. Returns whether there was one.
    pub(crate) fn preempt_newest(&mut self, model: usize) -> Result<bool, Failure> {
        let is_guest = |sequence: &Sequence| self.floor_tokens(model, sequence.request.id) == 0;
        let Some(index) = self.models[model].running.iter().rposition(is_guest) else {
            return Ok(false);
        };
        let Sequence {
            request, tokens, ..
        } = self.remove(model, index)?;
        let since = self.now;
        let queue = &mut self.models[model].queue;
        queue.push_front(Waiting { request, since });
        self.report.preempted += 1;
        self.report.wasted_tokens += tokens as u64;
        Ok(true)
    }

    /// Frees all but the first `kept` blocks of a sequence.
    fn truncate(&mut self, model: usize, index: usize, kept: usize) -> Result<(), Failure> {
        let running = &mut self.models[model].running;
        while running[index].blocks.len() > kept
            && let Some(block) = running[index].blocks.pop()
        {
            if !self
                .memory
                .is_intact(model, block, running[index].request.id)?
            {
                return Err(format!("block {block} of model {model} has wrong bytes").into());
            }
            self.memory.free(model, block)?;
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, model: usize, index: usize) -> Result<Sequence, Failure> {
        self.truncate(model, index, 0)?;
        Ok(self.models[model].running.remove(index))
    }
}
