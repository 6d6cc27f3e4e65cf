//! The handlers of one file.

/// The handlers of a file, and the changes that each has seen.
///
/// Only the first handler is given the file's content when it registers; later handlers wait for the next change.
#[derive(Debug, Default)]
pub struct Handlers {
    content: Option<String>,
    changes: u64,
    /// Each handler's number, and the number of changes that it has seen.
    handlers: Vec<(u64, u64)>,
    newest: u64,
}

impl Handlers {
    /// Creates a file without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a handler. Returns its number; the first is 1.
    pub fn register(&mut self) -> u64 {
        self.newest += 1;
        if self.handlers.is_empty() {
            self.content = None;
        }
        self.handlers.push((self.newest, self.changes));
        self.newest
    }

    /// Removes a handler.
    pub fn remove(&mut self, handler: u64) {
        self.handlers.retain(|(number, _)| *number != handler);
    }

    /// Checks the file. Returns the handlers that are given its content, in the order of their registration.
    pub fn look(&mut self, content: &str) -> Vec<u64> {
        if self.content.as_deref() != Some(content) {
            self.content = Some(content.to_owned());
            self.changes += 1;
        }
        let changes = self.changes;
        let late = self
            .handlers
            .iter_mut()
            .filter(|(_, known)| *known < changes);
        let told = late.map(|(number, known)| {
            *known = changes;
            *number
        });
        told.collect()
    }
}
