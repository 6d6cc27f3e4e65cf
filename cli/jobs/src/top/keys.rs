//! The keys of the live table.

use larder_control::PerfControl;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::screen::{KeyAction, Screen};
use crate::arguments::{parse_bytes, show_bytes};
use crate::order::ControlChange;
use crate::view::{GpuView, JobView};

impl Screen {
    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> KeyAction {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return KeyAction::Quit;
        }
        if self.typed.is_some() {
            return self.typing(key.code);
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                let last = self.lines.len().saturating_sub(1);
                self.selected = (self.selected + 1).min(last);
            }
            KeyCode::Char('+' | '=') => return self.step(u64::saturating_add),
            KeyCode::Char('-') => return self.step(u64::saturating_sub),
            KeyCode::Char('l') => self.typed = Some(String::new()),
            KeyCode::Char('p') => return self.perf(0),
            KeyCode::Char('r') => return self.perf(100),
            KeyCode::Char(digit @ '0'..='9') => {
                return self.perf(u64::from(digit.to_digit(10).unwrap_or(0)) * 10);
            }
            _ => {}
        }
        KeyAction::Nothing
    }

    fn typing(&mut self, code: KeyCode) -> KeyAction {
        let Some(typed) = &mut self.typed else {
            return KeyAction::Nothing;
        };
        match code {
            KeyCode::Char(letter) => typed.push(letter),
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Esc => self.typed = None,
            KeyCode::Enter => {
                let text = self.typed.take().unwrap_or_default();
                match parse_bytes(&text) {
                    Ok(bytes) => return self.limit(bytes),
                    Err(error) => self.say(error),
                }
            }
            _ => {}
        }
        KeyAction::Nothing
    }

    /// Changes the limit by one step from the limit in the control file, or, if there is none, from
    /// the limit in force.
    fn step(&mut self, change: fn(u64, u64) -> u64) -> KeyAction {
        let target = self.chosen().and_then(|(_, gpu)| {
            let gpu = gpu?;
            // Without a limit in force there is no number to start from.
            let in_force = gpu.limit_bytes.filter(|bytes| *bytes < u64::MAX / 2);
            gpu.target_limit_bytes.or(in_force)
        });
        match target {
            Some(target) => self.limit(change(target, self.step_bytes)),
            None => {
                self.say("the job has no limit to change: type one with l");
                KeyAction::Nothing
            }
        }
    }

    fn limit(&mut self, limit_bytes: u64) -> KeyAction {
        let gpu = self.chosen().and_then(|(_, gpu)| Some(gpu?.gpu));
        self.say(format!("limit {}", show_bytes(limit_bytes)));
        self.send(ControlChange {
            limit_bytes: Some(limit_bytes),
            gpu,
            ..ControlChange::default()
        })
    }

    /// Returns the job and the GPU of the selected line.
    fn chosen(&self) -> Option<(&JobView, Option<&GpuView>)> {
        let line = self.lines.get(self.selected)?;
        let job = self.jobs.get(line.job)?;
        Some((job, line.gpu.and_then(|gpu| job.gpus.get(gpu))))
    }

    fn perf(&mut self, percent: u64) -> KeyAction {
        self.send(ControlChange {
            perf: PerfControl::new(percent).ok(),
            ..ControlChange::default()
        })
    }

    fn send(&mut self, order: ControlChange) -> KeyAction {
        match self.chosen() {
            Some((job, _)) => KeyAction::Tell(job.files.clone(), order),
            None => {
                self.say("there is no job to send to");
                KeyAction::Nothing
            }
        }
    }
}
