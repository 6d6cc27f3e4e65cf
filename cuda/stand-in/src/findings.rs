//! Findings: defects of the program that uses the driver.

/// Maximum number of findings kept. Further findings are only counted.
const MAX_LINES: usize = 1000;

/// The findings so far, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    lines: Vec<String>,
    more: u64,
}

impl Findings {
    pub(crate) fn add(&mut self, line: String) {
        if self.lines.len() == MAX_LINES {
            self.more += 1;
            return;
        }
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        if self.more > 0 {
            text.push_str(&format!("and {} more\n", self.more));
        }
        text
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
