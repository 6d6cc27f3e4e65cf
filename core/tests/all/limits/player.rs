//! The player of the limits' script: one tree with named budgets.
//!
//! An outcome is the answer, then each budget that changed: its used bytes, its limit on live bytes where that differs
//! from its hard limit, and its excess.

use larder_core::limits::{
    BudgetConfig, BudgetError, BudgetId, BudgetRefusal, LimitAnswer, LimitTree,
};

use crate::golden::{self, Changes, number, option};

#[derive(Default)]
pub(crate) struct Player {
    tree: Option<LimitTree>,
    /// The budgets in the order in which they were added, including removed ones.
    budgets: Vec<(String, BudgetId)>,
    changes: Changes,
}

/// Reads `HARD [soft N] [floor N] [name N]`.
fn config(words: &[&str]) -> BudgetConfig {
    let option = |key| option(words, key).map(number);
    let plain = BudgetConfig::new(number(words[0]));
    BudgetConfig {
        soft_bytes: option("soft").unwrap_or(plain.soft_bytes),
        floor_bytes: option("floor").unwrap_or(plain.floor_bytes),
        name: option("name").map_or(plain.name, |name| name as u32),
        ..plain
    }
}

impl golden::Player for Player {
    fn new() -> Self {
        Self::default()
    }

    fn carry_out(&mut self, operation: &str, words: &[&str]) -> String {
        let outcome = self.answer(operation, words);
        if let Some(tree) = &self.tree {
            tree.check_invariants().unwrap();
        }
        outcome + &self.changes()
    }
}

impl Player {
    fn tree(&mut self) -> &mut LimitTree {
        self.tree.as_mut().expect("a tree")
    }

    fn id(&self, name: &str) -> BudgetId {
        let found = self.budgets.iter().rev().find(|budget| budget.0 == name);
        found.unwrap_or_else(|| panic!("no budget is {name}")).1
    }

    fn name(&self, id: BudgetId) -> &str {
        let found = self.budgets.iter().rev().find(|budget| budget.1 == id);
        found.map_or("an unknown one", |budget| &budget.0)
    }

    fn refusal(&self, refusal: BudgetRefusal) -> String {
        let BudgetRefusal {
            budget,
            name,
            limit_bytes,
            used_bytes,
            wanted_bytes,
            ..
        } = refusal;
        let of = self.name(budget);
        format!(
            "{of} (named {name}) has {used_bytes} of {limit_bytes} and cannot have {wanted_bytes} more"
        )
    }

    fn error(&self, error: BudgetError) -> String {
        match error {
            BudgetError::NoRoom(refusal) => format!("no room: {}", self.refusal(refusal)),
            other => format!("{other:?}"),
        }
    }

    fn answer(&mut self, operation: &str, words: &[&str]) -> String {
        let id = match (operation, words) {
            ("tree" | "events", _) | (_, []) => None,
            _ => Some(self.id(words[0])),
        };
        let done = match operation {
            "tree" => match LimitTree::new(number(words[0]) as usize, config(&words[1..])) {
                Ok(tree) => {
                    self.budgets = vec![("root".into(), tree.root())];
                    self.tree = Some(tree);
                    Ok(())
                }
                Err(error) => Err(error),
            },
            // `add PARENT NAME LIMITS`.
            "add" => {
                let (above, config) = (id.unwrap(), config(&words[2..]));
                let added = self.tree().add(above, config);
                added.map(|id| self.budgets.push((words[1].into(), id)))
            }
            "charge" => self.tree().charge(id.unwrap(), number(words[1])),
            "credit" => self.tree().credit(id.unwrap(), number(words[1])),
            "hold" => self.tree().hold(id.unwrap(), number(words[1])),
            "remove" => self.tree().remove(id.unwrap()),
            "set" => {
                let soft = words.get(2).map(|soft| number(soft));
                return match self.tree().set(id.unwrap(), number(words[1]), soft) {
                    LimitAnswer::Refused(error) => self.error(error),
                    LimitAnswer::Applied => String::new(),
                    answer => format!("{answer:?}"),
                };
            }
            "events" => return self.events(),
            "refusal" => {
                let refusal = self.tree().refusal(id.unwrap(), number(words[1]));
                return refusal.map_or("none".into(), |refusal| self.refusal(refusal));
            }
            "in-excess" => {
                let refusal = self.tree().in_excess(id.unwrap(), number(words[1]));
                return refusal.map_or("none".into(), |refusal| self.refusal(refusal));
            }
            "within" => {
                let above = self.id(words[1]);
                return format!("{}", self.tree().is_within(id.unwrap(), above));
            }
            "usage" => {
                let usage = self.tree().usage(id.unwrap());
                return usage.map_or("unknown".into(), |usage| {
                    format!("{} used", usage.used_bytes)
                });
            }
            other => panic!("no operation is {other}"),
        };
        done.map_or_else(|error| self.error(error), |()| String::new())
    }

    fn events(&mut self) -> String {
        let mut told = Vec::new();
        let had = self.tree().has_events();
        while let Some(event) = self.tree().take_event() {
            let of = self.name(event.budget);
            let (used, limit) = (event.used_bytes, event.limit_bytes);
            told.push(format!(
                "{:?} of {of} (named {}): {used} of {limit}",
                event.kind, event.name
            ));
        }
        assert!(had || told.is_empty());
        assert!(!self.tree().has_events());
        told.join(", ")
    }

    fn changes(&mut self) -> String {
        let Some(tree) = &self.tree else {
            return String::new();
        };
        let mut words = String::new();
        for (name, id) in &self.budgets {
            let now = match tree.usage(*id) {
                None => "gone".into(),
                Some(usage) => {
                    let mut now = format!("{}", usage.used_bytes);
                    let live = tree.live_limit(*id).unwrap();
                    if live != usage.config.hard_bytes {
                        now += &format!(" and {live} live");
                    }
                    assert_eq!(tree.excess_bytes(*id), Some(usage.excess_bytes));
                    if usage.excess_bytes > 0 {
                        now += &format!(", excess {}", usage.excess_bytes);
                    }
                    now
                }
            };
            words += &self.changes.note(name, now);
        }
        words
    }
}
