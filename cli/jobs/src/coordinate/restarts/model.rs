//! [`ScenarioModel`]: a scenario, with the real coordination as a function from the files of a
//! world to the next ones. Results are cached.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use larder_control::{BusId, ControlFile, GpuLimit, JobStatus, Life, PerfControl, StatusFile};

use super::super::CoordinationSettings;
use super::super::joined::JobFigures;
use super::super::reading::Reading;
use super::super::rounds::Coordination;
use super::world::{
    Chances, Files, JobProcess, MOST, OrderFile, PlannedProcess, RoundPhase, Status, Transition,
    World,
};
use crate::alive::Liveness;
use crate::files::JobPaths;

/// A deliberate defect of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProtocolChange {
    Faithful,
    /// A job obeys orders for its earlier run.
    ObeysFormerOrders,
    /// Two processes of a job exist, and both obey its control file.
    ObeysTogether,
    /// A coordinator ignores an unknown job without a status, regardless of earlier orders.
    PassesOverMissing,
    /// A coordinator assumes that a job holds no more than the last limit.
    KnowsLastLimitOnly,
    /// Processes that exist may look gone.
    LooksGone,
}

/// The initial state, and the faults that can happen.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) total: u8,
    pub(super) plans: Vec<PlannedProcess>,
    pub(super) chances: Chances,
    /// Whether a process locks its job's names.
    pub(super) locks: bool,
    /// Whether steps that no other party sees are merged with others.
    pub(super) is_merged: bool,
    /// Whether a process may obey an order some time after it has read it.
    pub(super) obeys_late: bool,
    /// Whether a process may take memory some time after it was allowed to.
    pub(super) takes_late: bool,
}

/// The coordinator's state, the files read, and the processes that existed when it decided.
type Question = (u32, [Option<Files>; MOST], [(u8, bool); MOST]);
/// The coordinator's state, and a job with its control file.
type Change = (u32, usize, Option<OrderFile>);

/// A scenario with all states that its coordinators may have.
pub(super) struct ScenarioModel {
    pub(super) scenario: Scenario,
    pub(super) twin: ProtocolChange,
    names: Vec<JobPaths>,
    gpu: BusId,
    known: Vec<Coordination>,
    numbers: HashMap<u128, u32>,
    decided: HashMap<Question, u32>,
    written: HashMap<Change, (u32, Option<OrderFile>)>,
}

impl ProtocolChange {
    pub(super) fn obeys_any(self) -> bool {
        matches!(self, Self::ObeysFormerOrders | Self::ObeysTogether)
    }
}

impl ScenarioModel {
    pub(super) fn new(scenario: Scenario, twin: ProtocolChange) -> Self {
        let settings = CoordinationSettings {
            total_bytes: scenario.total.into(),
            gpu: None,
            step_bytes: 1,
            floor_bytes: 0,
            calm: Duration::ZERO,
            perf_beside: PerfControl::FULL,
            turn: None,
        };
        let names = scenario.plans.iter().map(|plan| plan.name).max();
        let names = 0..=names.unwrap();
        let mut model = Self {
            scenario,
            twin,
            names: names
                .map(|name| JobPaths::ours(Path::new("/"), &name.to_string()))
                .collect(),
            gpu: "00:1e.0".parse().unwrap(),
            known: Vec::new(),
            numbers: HashMap::new(),
            decided: HashMap::new(),
            written: HashMap::new(),
        };
        model.keep(Coordination::new(settings));
        model
    }

    /// Returns the world before any process was started.
    pub(super) fn beginning(&self) -> World {
        World {
            processes: [JobProcess::default(); MOST],
            files: [Files::default(); MOST],
            read: [None; MOST],
            round: RoundPhase::Looks,
            known: 0,
            chances: self.scenario.chances,
            is_hidden: false,
        }
    }

    /// Returns all steps that may be possible.
    pub(super) fn steps(&self) -> Vec<Transition> {
        let mut steps = vec![Transition::Decide, Transition::Write, Transition::Crash];
        let of_process = [
            Transition::Read,
            Transition::Obey,
            Transition::Take,
            Transition::Give,
            Transition::Say,
            Transition::Change,
            Transition::Kill,
            Transition::Start,
        ];
        for number in 0..self.scenario.plans.len() {
            steps.extend(of_process.iter().map(|step| step(number)));
        }
        for job in 0..self.jobs() {
            steps.extend([
                Transition::Look(job),
                Transition::Remove(job),
                Transition::Forget(job),
            ]);
        }
        if self.twin == ProtocolChange::LooksGone {
            steps.push(Transition::Hide);
        }
        steps
    }

    /// Returns the number of names.
    pub(super) fn jobs(&self) -> usize {
        self.names.len()
    }

    /// Returns the number of different coordinator states.
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }

    /// Returns the coordinator's state after its decision; `None` if it has not read all files.
    pub(super) fn decided(&mut self, world: &World) -> Option<u32> {
        let there = world
            .processes
            .map(|process| (process.start, process.is_there && !world.is_hidden));
        let question = (world.known, world.read, there);
        if let Some(known) = self.decided.get(&question) {
            return Some(*known);
        }
        let readings: Option<BTreeMap<_, _>> = self
            .names
            .iter()
            .zip(&world.read)
            .map(|(name, files)| Some((name.clone(), self.reading((*files)?))))
            .collect();
        let alive = |_: Option<u32>, life: Option<Life>| match life {
            None => Liveness::Unknown,
            Some(life) => {
                let (number, start) = numbers(life);
                match there[usize::from(number)] == (start, true) {
                    true => Liveness::Yes,
                    false => Liveness::No,
                }
            }
        };
        let mut coordination = self.known[world.known as usize].clone();
        coordination.decide(&readings?, &alive, Duration::ZERO, &mut Vec::new());
        let known = self.keep(coordination);
        self.decided.insert(question, known);
        Some(known)
    }

    /// Returns the coordinator's state and a job's control file after the write.
    pub(super) fn written(&mut self, world: &World, job: usize) -> (u32, Option<OrderFile>) {
        let before = world.files[job].control;
        let change = (world.known, job, before);
        if let Some(after) = self.written.get(&change) {
            return *after;
        }
        let mut coordination = self.known[world.known as usize].clone();
        let mut after = (world.known, before);
        if let Some(known) = coordination.known.get_mut(&self.names[job]) {
            let file = before.map_or_else(ControlFile::default, |orders| self.control(orders));
            if let Some(file) = known.order(&file) {
                after.1 = Some(self.orders(&file));
                known.written();
                after.0 = self.keep(coordination);
            }
        }
        self.written.insert(change, after);
        after
    }

    /// Returns the number of a coordinator's state, from which it removes figures that are only
    /// reported.
    fn keep(&mut self, mut coordination: Coordination) -> u32 {
        for known in coordination.known.values_mut() {
            known.state = JobFigures::default();
            // With a calm of zero, this time makes no difference.
            known.claims_since = None;
        }
        let next = self.known.len() as u32;
        let number = *self
            .numbers
            .entry(fingerprint(&renumbered(&format!("{coordination:?}"))))
            .or_insert(next);
        if number == next {
            self.known.push(coordination);
        }
        number
    }

    fn reading(&self, files: Files) -> Reading {
        let mut orders = files.control;
        if self.twin == ProtocolChange::PassesOverMissing && files.status.is_none() {
            orders = None;
        }
        if self.twin == ProtocolChange::KnowsLastLimitOnly {
            orders = orders.map(|orders| OrderFile {
                may_hold: None,
                ..orders
            });
        }
        Reading {
            status: Ok(files.status.map(|status| self.status(status))),
            control: Ok(orders.map_or_else(ControlFile::default, |orders| self.control(orders))),
            is_own_word: false,
            user: None,
        }
    }

    fn status(&self, status: Status) -> StatusFile {
        let mut here = GpuLimit::default();
        here.limit_bytes = status.limit.into();
        here.held_bytes = status.held.into();
        here.deferred_bytes = status.deferred.into();
        here.wanted_bytes = Some(status.wants.into());
        let mut own = JobStatus::default();
        let life = life(status.by);
        (own.pid, own.life) = (life.pid(), Some(life));
        own.priority = Some(
            self.scenario.plans[usize::from(status.by.0)]
                .priority
                .into(),
        );
        own.control_version = Some(status.version.into()).filter(|version| *version > 0);
        own.gpus.insert(self.gpu, here);
        let mut file = StatusFile::default();
        file.larder = Some(own);
        file
    }

    fn control(&self, orders: OrderFile) -> ControlFile {
        let mut file = ControlFile::default();
        file.life = Some(life(orders.of));
        file.control_version = Some(orders.version.into());
        file.limit(self.gpu, orders.limit.into());
        file.gpus.entry(self.gpu).or_default().may_hold = orders.may_hold.map(u64::from);
        file
    }

    fn orders(&self, file: &ControlFile) -> OrderFile {
        let here = &file.gpus[&self.gpu];
        let small = |number: Option<u64>| number.map(|number| u8::try_from(number).unwrap());
        let orders = OrderFile {
            of: numbers(file.life.unwrap()),
            limit: small(here.max_device_mem).unwrap(),
            may_hold: small(here.may_hold),
            version: small(file.control_version).unwrap(),
        };
        assert_eq!(
            self.control(orders),
            *file,
            "a world has all of a control file"
        );
        orders
    }
}

/// Returns the life of a process, from its number and how often it has started: its PID is the same
/// each time.
fn life((number, start): (u8, u8)) -> Life {
    let boot = 1;
    format!("{}-{start}-{boot:032x}", 100 + u32::from(number))
        .parse()
        .unwrap()
}

fn numbers(of: Life) -> (u8, u8) {
    let number = (of.pid() - 100) as u8;
    let text = of.to_string();
    let start = text.split('-').nth(1).unwrap();
    (number, start.parse().unwrap())
}

/// Renumbers the jobs in a text from 0, and removes the next number, since only the order of the
/// jobs matters.
fn renumbered(text: &str) -> String {
    let (mut parts, mut ids) = (Vec::new(), BTreeSet::new());
    for part in text.split("JobId(") {
        let part = part.split_once(')').unwrap_or(("", part));
        let id = part.0.parse::<u64>().ok();
        ids.extend(id);
        parts.push((id, part.1));
    }
    let mut all = String::new();
    for (id, part) in parts {
        all.push_str(&id.map_or(0, |id| ids.range(..id).count()).to_string());
        let (before, after) = part.split_once(", next: ").unwrap_or((part, ""));
        all.push_str(before);
        all.push_str(after.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    }
    all
}

/// Returns 128 bits that differ where values differ.
pub(super) fn fingerprint(value: &impl Hash) -> u128 {
    let mut hasher = Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    value.hash(&mut hasher);
    hasher.0
}

/// FNV-1a with 128 bits.
struct Fnv(u128);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul((1 << 88) + 0x13b);
        }
    }

    fn finish(&self) -> u64 {
        self.0 as u64
    }
}
