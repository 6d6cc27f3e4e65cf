//! One contender, filled to the steady number of live blocks and churned.

use std::time::{Duration, Instant};

use super::{Bump, Cursor, Failure, GRANULE_BYTES, PairContender, PairFault, PairScript};

/// A measured contender, whatever its type.
pub trait Runner {
    /// Returns the contender's name.
    fn name(&self) -> &'static str;

    /// Returns the number of live blocks between two calls.
    fn live(&self) -> usize;

    /// Runs `pairs` pairs. Returns their time.
    ///
    /// # Errors
    /// If the contender fails a pair.
    fn run(&mut self, pairs: u64) -> Result<Duration, Failure>;

    /// Checks that the live blocks do not overlap, frees them all, and checks that the contender has one free chunk
    /// again.
    ///
    /// # Errors
    /// The contender's fault.
    fn finish(self: Box<Self>) -> Result<(), Failure>;
}

/// The loop around one contender.
pub struct Churn<'s, C: PairContender> {
    /// The contender's name in tables.
    name: &'static str,
    contender: C,
    script: &'s PairScript,
    cursor: Cursor,
    live: Vec<C::Block>,
    /// Pairs run so far.
    done: u64,
}

impl<'s, C: PairContender> Churn<'s, C> {
    /// Fills `contender` to the script's number of live blocks.
    ///
    /// # Errors
    /// If the pool is too small for these blocks.
    pub fn try_new(
        name: &'static str,
        contender: C,
        script: &'s PairScript,
    ) -> Result<Self, Failure> {
        let mut churn = Self {
            name,
            contender,
            script,
            cursor: Cursor::default(),
            live: Vec::with_capacity(script.live()),
            done: 0,
        };
        match churn.fill() {
            Ok(()) => Ok(churn),
            Err(fault) => Err(churn.failure(fault)),
        }
    }

    fn fill(&mut self) -> Result<(), PairFault> {
        for _ in 0..self.script.live() {
            self.alloc_next()?;
        }
        Ok(())
    }

    #[inline]
    fn alloc_next(&mut self) -> Result<(), PairFault> {
        let bytes = self.script.next_bytes(&mut self.cursor);
        let block = self.contender.alloc(bytes);
        self.live
            .push(block.ok_or(PairFault::OutOfMemory { bytes })?);
        Ok(())
    }

    /// The measured loop.
    #[inline(never)]
    fn run_pairs(&mut self, pairs: u64) -> Result<(), PairFault> {
        for _ in 0..pairs {
            let victim = self.script.next_victim(&mut self.cursor);
            let block = self.live.swap_remove(victim);
            self.contender.free(block).ok_or(PairFault::FreeRefused)?;
            self.alloc_next()?;
        }
        Ok(())
    }

    /// Returns the sizes of the live blocks by index, from a [`Bump`] that runs the same pairs.
    fn live_bytes(&self) -> Result<Vec<u32>, PairFault> {
        let mut mirror = Churn {
            name: self.name,
            contender: Bump::default(),
            script: self.script,
            cursor: Cursor::default(),
            live: Vec::with_capacity(self.live.len()),
            done: 0,
        };
        mirror.fill()?;
        mirror.run_pairs(self.done)?;
        Ok(mirror.live.iter().map(|block| block.bytes).collect())
    }

    fn check_live(&self) -> Result<(), PairFault> {
        let bytes = self.live_bytes()?;
        let addresses = self.live.iter().map(|block| self.contender.address(block));
        let mut blocks: Vec<(u64, u32)> = addresses.zip(bytes).collect();
        blocks.sort_unstable();
        let pool = self.contender.pool();
        if let Some(&(address, _)) = blocks.first()
            && address < pool.start
        {
            return Err(PairFault::BeforePool { address });
        }
        let ends = blocks.iter().skip(1).map(|&(address, _)| address);
        for (&(address, bytes), end) in blocks.iter().zip(ends.chain([pool.end])) {
            let granted = u64::from(bytes.next_multiple_of(GRANULE_BYTES));
            if end.saturating_sub(address) < granted {
                return Err(PairFault::Overlap {
                    address,
                    bytes,
                    end,
                });
            }
        }
        Ok(())
    }

    fn free_all(&mut self) -> Result<(), PairFault> {
        while let Some(block) = self.live.pop() {
            self.contender.free(block).ok_or(PairFault::FreeRefused)?;
        }
        self.contender.check_empty().map_err(PairFault::NotEmpty)
    }

    fn failure(&self, fault: PairFault) -> Failure {
        Failure {
            contender: self.name,
            live: self.script.live(),
            fault,
        }
    }
}

impl<C: PairContender> Runner for Churn<'_, C> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn live(&self) -> usize {
        self.script.live()
    }

    fn run(&mut self, pairs: u64) -> Result<Duration, Failure> {
        let start = Instant::now();
        let result = self.run_pairs(pairs);
        let elapsed = start.elapsed();
        self.done += pairs;
        match result {
            Ok(()) => Ok(elapsed),
            Err(fault) => Err(self.failure(fault)),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<(), Failure> {
        let checked = self.check_live().and_then(|()| self.free_all());
        checked.map_err(|fault| self.failure(fault))
    }
}
