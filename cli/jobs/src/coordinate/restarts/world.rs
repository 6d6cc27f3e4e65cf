//! [`World`]: processes of jobs, the jobs' files, and a coordinator in the middle of a round; and
//! [`Transition`], the next event. Amounts of memory are in bytes, of a device that has two or
//! three.

use super::model::ScenarioModel;

/// Maximum number of jobs, and of processes, in a world.
pub(super) const MOST: usize = 3;

/// An indivisible event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transition {
    /// The coordinator reads a job's two files.
    Look(usize),
    /// The coordinator decides, from the files that it has read.
    Decide,
    /// The coordinator writes the next control file that changes.
    Write,
    /// The coordinator ends, and its state is lost. Another one may begin.
    Crash,
    /// A process reads its control file.
    Read(usize),
    /// A process puts the order that it has read in force.
    Obey(usize),
    /// A process takes the memory it wants, up to its limit.
    Take(usize),
    /// A process releases memory that is above its limit or not wanted.
    Give(usize),
    /// A process writes its status, even if the file was removed.
    Say(usize),
    /// A process wants another amount from now on.
    Change(usize),
    /// A process ends, and its files stay.
    Kill(usize),
    /// A process begins, as the first of its job or as another one that finds its job's old files.
    Start(usize),
    /// A user removes a job's status.
    Remove(usize),
    /// A user removes both files of a job without a process.
    Forget(usize),
    /// From now on the coordinator can see no process.
    Hide,
}

/// A process of a scenario that is to run a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PlannedProcess {
    /// The number of its job's name. Two processes with the same name do not exist at the same time
    /// if they lock it.
    pub(super) name: usize,
    pub(super) priority: u8,
    pub(super) wants: u8,
    /// The amount that it may want later.
    pub(super) changes_to: u8,
}

/// The faults that may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Chances {
    pub(super) kills: u8,
    pub(super) crashes: u8,
    pub(super) removals: u8,
    pub(super) changes: u8,
}

/// A process. If it does not exist, it has no memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct JobProcess {
    /// Number of the current or last life; 0 before the first.
    pub(super) start: u8,
    pub(super) is_there: bool,
    pub(super) limit: u8,
    pub(super) held: u8,
    pub(super) wants: u8,
    /// Number of the order that the process obeys.
    pub(super) version: u8,
    /// The limit and the version that the process has read and not obeyed yet.
    pub(super) inbox: Option<(u8, u8)>,
}

/// A job's two files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Files {
    pub(super) status: Option<Status>,
    pub(super) control: Option<OrderFile>,
}

/// A status file, and the number and the life of the process that wrote it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Status {
    pub(super) by: (u8, u8),
    pub(super) limit: u8,
    pub(super) held: u8,
    pub(super) deferred: u8,
    pub(super) wants: u8,
    pub(super) version: u8,
}

/// A control file, and the number and the life of the process it is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct OrderFile {
    pub(super) of: (u8, u8),
    pub(super) limit: u8,
    pub(super) may_hold: Option<u8>,
    pub(super) version: u8,
}

/// The stage of a round: before its decision, or before it writes a job's order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum RoundPhase {
    Looks,
    Writes(usize),
}

/// The whole state. A state without a coordinator equals one with a coordinator that has done
/// nothing yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct World {
    pub(super) processes: [JobProcess; MOST],
    pub(super) files: [Files; MOST],
    /// The files that the coordinator read in this round.
    pub(super) read: [Option<Files>; MOST],
    pub(super) round: RoundPhase,
    /// The coordinator's state, by its number in the model.
    pub(super) known: u32,
    pub(super) chances: Chances,
    pub(super) is_hidden: bool,
}

impl Chances {
    /// Returns whether at least as many faults as in `other` may still happen.
    pub(super) fn has(&self, other: &Self) -> bool {
        self.kills >= other.kills
            && self.crashes >= other.crashes
            && self.removals >= other.removals
            && self.changes >= other.changes
    }
}

impl JobProcess {
    /// Returns the maximum memory that the process can hold before the coordinator reads its status
    /// again.
    pub(super) fn may_hold(&self) -> u8 {
        let read = self.inbox.map_or(0, |(limit, _)| limit);
        self.held.max(self.limit).max(read)
    }

    fn status(&self, number: usize) -> Status {
        Status {
            by: (number as u8, self.start),
            limit: self.limit,
            held: self.held,
            deferred: self.held.saturating_sub(self.limit),
            wants: self.wants,
            version: self.version,
        }
    }

    fn take(&mut self) {
        self.held = self.held.max(self.limit.min(self.wants));
    }

    fn obey(&mut self, takes: bool) {
        let Some((limit, version)) = self.inbox.take() else {
            return;
        };
        (self.limit, self.version) = (limit, version);
        if takes {
            self.take();
        }
    }
}

impl World {
    /// Returns the world after a step; `None` if the step is not possible, or changes nothing.
    pub(super) fn after(&self, step: Transition, model: &mut ScenarioModel) -> Option<Self> {
        let mut next = *self;
        match step {
            Transition::Look(_) | Transition::Decide | Transition::Write | Transition::Crash => {
                next.coordinate(step, model)?;
            }
            Transition::Read(of)
            | Transition::Obey(of)
            | Transition::Take(of)
            | Transition::Give(of)
            | Transition::Say(of)
            | Transition::Change(of) => next.go_on(step, of, model)?,
            Transition::Kill(of) => {
                next.chances.kills = self.chances.kills.checked_sub(1)?;
                let process = &mut next.processes[of];
                process.is_there.then_some(())?;
                let start = process.start;
                *process = JobProcess {
                    start,
                    ..JobProcess::default()
                };
            }
            Transition::Start(of) => {
                let plan = model.scenario.plans[of];
                let is_taken = model.scenario.locks && self.is_there(plan.name, model);
                (!self.processes[of].is_there && !is_taken).then_some(())?;
                next.processes[of] = JobProcess {
                    start: self.processes[of].start + 1,
                    is_there: true,
                    wants: plan.wants,
                    ..JobProcess::default()
                };
            }
            Transition::Remove(job) => {
                next.chances.removals = self.chances.removals.checked_sub(1)?;
                next.files[job].status.take()?;
            }
            Transition::Forget(job) => {
                next.chances.removals = self.chances.removals.checked_sub(1)?;
                (self.is_hidden || !self.is_there(job, model)).then_some(())?;
                next.files[job] = Files::default();
            }
            Transition::Hide => next.is_hidden = true,
        }
        (next != *self).then_some(next)
    }

    fn is_there(&self, job: usize, model: &ScenarioModel) -> bool {
        let mut all = self.processes.iter().zip(&model.scenario.plans);
        all.any(|(process, plan)| plan.name == job && process.is_there)
    }

    /// Takes a step of an existing process.
    fn go_on(&mut self, step: Transition, of: usize, model: &ScenarioModel) -> Option<()> {
        let process = &mut self.processes[of];
        process.is_there.then_some(())?;
        let plan = model.scenario.plans[of];
        let files = &mut self.files[plan.name];
        match step {
            Transition::Read(_) => {
                let orders = files.control?;
                let is_obeyed = orders.of == (of as u8, process.start);
                (is_obeyed || model.twin.obeys_any()).then_some(())?;
                let read = (orders.limit, orders.version);
                // Reading an order again changes nothing.
                let last = process.inbox.unwrap_or((process.limit, process.version));
                (read != last).then_some(())?;
                process.inbox = Some(read);
                if !model.scenario.obeys_late {
                    process.obey(!model.scenario.takes_late);
                }
            }
            Transition::Obey(_) => process.obey(!model.scenario.takes_late),
            Transition::Take(_) => process.take(),
            Transition::Give(_) => {
                process.held = process.held.min(process.limit).min(process.wants);
            }
            Transition::Say(_) => files.status = Some(process.status(of)),
            _ => {
                self.chances.changes = self.chances.changes.checked_sub(1)?;
                process.wants = plan.changes_to;
            }
        }
        Some(())
    }

    /// Takes a step of the coordinator.
    fn coordinate(&mut self, step: Transition, model: &mut ScenarioModel) -> Option<()> {
        match (step, self.round) {
            (Transition::Look(job), RoundPhase::Looks) if self.read[job].is_none() => {
                self.read[job] = Some(self.files[job]);
            }
            (Transition::Decide, RoundPhase::Looks) => {
                self.known = model.decided(self)?;
                self.read = [None; MOST];
                self.round = self.next_write(0, model);
            }
            (Transition::Write, RoundPhase::Writes(job)) => {
                (self.known, self.files[job].control) = model.written(self, job);
                self.round = self.next_write(job + 1, model);
            }
            // A coordinator without state equals a new one.
            (Transition::Crash, round) if self.known != 0 || round != RoundPhase::Looks => {
                self.chances.crashes = self.chances.crashes.checked_sub(1)?;
                (self.known, self.round) = (0, RoundPhase::Looks);
                self.read = [None; MOST];
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns the next job whose control file changes. Writes that change nothing are not steps.
    fn next_write(&self, from: usize, model: &mut ScenarioModel) -> RoundPhase {
        let mut rest = from..model.jobs();
        let changes = |job: &usize| model.written(self, *job).1 != self.files[*job].control;
        match rest.find(changes) {
            Some(job) => RoundPhase::Writes(job),
            None => RoundPhase::Looks,
        }
    }
}
