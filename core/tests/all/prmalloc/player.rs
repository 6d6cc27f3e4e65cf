//! The player of the pools' scripts: a pool, ours or a form of upstream's, over the backend that counts.
//!
//! Blocks are `name=bytes@alignment`; the default alignment is 64. `step`, `run` and `plan` carry out operations with
//! [`InUse`]: in a step, outside steps, and in steps until a plan serves. An outcome is the answer, the increases of
//! the counts and of the backend's calls, and the bytes held where they have changed.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use larder_core::prmalloc::{Interval, OpenStep, PlanError, PlannedPoolConfig, Replan};
use larder_core::{Addr, Align};
use larder_model::prmalloc::{Form, Window};

use super::rig::{
    AnyPool, CountedBackend, FIRST, InUse, Mock, OverMock, Pool, Upstream, pool_with, soon,
    until_planned, upstream, upstream_soon,
};
use crate::golden::{self, number, option};

enum Kind {
    Ours(Box<Pool>),
    Upstream(Box<Upstream>),
}

pub struct Player {
    kind: Kind,
    in_use: InUse,
    /// The addresses of blocks by name, including freed ones.
    named: HashMap<String, Addr>,
    step: Option<OpenStep>,
    counts: HashMap<&'static str, u64>,
    stage: String,
}

/// Returns our pool, which plans soon, with the given options.
fn ours(words: &[&str]) -> Kind {
    let mut config = PlannedPoolConfig {
        cap_bytes: option(words, "cap").map_or(soon().cap_bytes, number),
        ..soon()
    };
    if words.contains(&"replans") {
        config.replan = Some(Replan {
            miss_percent: 10,
            steps: 3,
        });
    }
    let stats = option(words, "stats").map_or(1 << 10, number);
    Kind::Ours(Box::new(pool_with(
        config,
        words.contains(&"small"),
        stats as usize,
    )))
}

/// Returns upstream's pool: the CPU form, which plans soon, or the GPU form, which plans `after` a number of steps.
fn upstreams(words: &[&str]) -> Kind {
    if words[0] == "cpu" {
        return Kind::Upstream(Box::new(upstream_soon()));
    }
    let stop = option(words, "after").map(number);
    let form = Form {
        window: stop.map_or(Form::GPU.window, |stop| Window::EachStart {
            start: 0,
            stop: stop as i64,
        }),
        // Upstream's asynchronous free.
        late_frees: words.contains(&"late"),
        ..Form::GPU
    };
    Kind::Upstream(Box::new(upstream(form, words.contains(&"small"))))
}

fn ended(end: Result<(), PlanError>) -> String {
    end.map_or_else(|error| format!("{error:?}"), |()| String::new())
}

impl golden::Player for Player {
    fn new() -> Self {
        Self {
            kind: ours(&[]),
            in_use: InUse::default(),
            named: HashMap::new(),
            step: None,
            counts: HashMap::new(),
            stage: String::new(),
        }
    }

    fn carry_out(&mut self, operation: &str, words: &[&str]) -> String {
        self.answer(operation, words) + &self.changes()
    }
}

impl Player {
    fn pool(&self) -> &dyn OverMock {
        match &self.kind {
            Kind::Ours(pool) => &**pool,
            Kind::Upstream(pool) => &**pool,
        }
    }

    fn ours(&self) -> &Pool {
        match &self.kind {
            Kind::Ours(pool) => pool,
            Kind::Upstream(_) => panic!("upstream's has no such operation"),
        }
    }

    fn mock(&self) -> &Mock {
        self.pool().backend()
    }

    fn start_over(&mut self, kind: Kind) {
        *self = <Self as golden::Player>::new();
        self.kind = kind;
    }

    fn answer(&mut self, operation: &str, words: &[&str]) -> String {
        match operation {
            "ours" => self.start_over(ours(words)),
            "upstream" => self.start_over(upstreams(words)),
            "plan" => until_planned(self.pool(), &words.join(" ")),
            "step" => {
                let mut in_use = std::mem::take(&mut self.in_use);
                let end = in_use.step(self.pool(), &words.join(" "));
                self.in_use = in_use;
                return ended(end);
            }
            "run" => {
                let mut in_use = std::mem::take(&mut self.in_use);
                in_use.run(self.pool(), &words.join(" "));
                self.in_use = in_use;
            }
            "begin" => self.step = Some(self.ours().start()),
            "done" => {
                let step = self.step.take().expect("a step");
                return ended(self.ours().end_step(step));
            }
            "alloc" => return self.alloc(words),
            "free" => return self.free(words),
            "capacity" => self
                .mock()
                .capacity_bytes
                .store(number(words[0]), Ordering::SeqCst),
            "refuse" => {
                let count = number(words[0]) as u32;
                self.mock().refuse_releases.store(count, Ordering::SeqCst);
            }
            "reset" => self.pool().reset(),
            "replan" => return if self.ours().replan() { "yes" } else { "no" }.into(),
            "virtuals" => {
                let Kind::Upstream(pool) = &self.kind else {
                    panic!("ours has no such count");
                };
                let class = Interval::KiB4.class_of(number(words[0])).unwrap();
                return format!("{}", pool.virtuals_of(class));
            }
            other => panic!("no operation is {other}"),
        }
        String::new()
    }

    fn alloc(&mut self, words: &[&str]) -> String {
        let mut answers = Vec::new();
        for word in words {
            let (name, size) = word.split_once('=').expect("a name and a size");
            let (bytes, align) = size.split_once('@').unwrap_or((size, "64"));
            let align = Align::new(number(align)).unwrap();
            match self.pool().alloc(number(bytes), align) {
                Ok(addr) => {
                    assert!(addr.is_aligned(align), "{addr} for {align:?}");
                    answers.push(format!("{}", addr.get() - FIRST));
                    self.named.insert(name.into(), addr);
                }
                Err(error) => answers.push(format!("refused: {error:?}")),
            }
        }
        answers.join(" ")
    }

    /// Frees addresses: `name` or `name+N` for a block, or a number for an address without a block.
    fn free(&mut self, words: &[&str]) -> String {
        let mut answers = Vec::new();
        for word in words {
            let (name, offset) = word.split_once('+').unwrap_or((word, "0"));
            let start = self.named.get(name).map(|addr| addr.get());
            let start = start.unwrap_or_else(|| number(name));
            if let Err(error) = self.pool().free(Addr::new(start + number(offset))) {
                answers.push(format!("refused: {error:?}"));
            }
        }
        answers.join(" ")
    }

    fn changes(&mut self) -> String {
        let (counts, (grows, releases)) = (self.pool().counts(), self.mock().calls());
        let out = self.mock().out_bytes();
        let mut words = String::new();
        for (name, now) in [
            ("hits", counts.hits),
            ("missed", counts.missed),
            ("no bin", counts.no_bin),
            ("grows", grows),
            ("releases", releases),
        ] {
            let before = self.counts.insert(name, now).unwrap_or(0);
            if before != now {
                words += &format!("; {name} +{}", now - before);
            }
        }
        for (name, now) in [
            ("slabs", counts.slab_bytes),
            ("direct", counts.direct_bytes),
            ("out", out),
        ] {
            if self.counts.insert(name, now).unwrap_or(0) != now {
                words += &format!("; {name} {now}");
            }
        }
        let stage = match &self.kind {
            Kind::Ours(pool) => {
                let plan = pool.serving().map(|plan| format!(", plan {plan} serves"));
                format!("{:?}{}", pool.planner().state(), plan.unwrap_or_default())
            }
            Kind::Upstream(pool) if pool.is_planned() => "planned".into(),
            Kind::Upstream(_) => "not planned".into(),
        };
        if self.stage != stage {
            words += &format!("; {stage}");
            self.stage = stage;
        }
        words
    }
}
