//! The worker's command line.

use crate::scale::Scale;

pub const USAGE: &str = "usage: larder-versus-worker WORKLOAD [--scale N] [--check] [--pin]\n       larder-versus-worker --list";

/// The worker's command.
#[derive(Debug, PartialEq)]
pub enum Arguments {
    /// Lists the names and descriptions of the workloads.
    List,
    /// Runs one workload once.
    Run {
        name: String,
        scale: Scale,
        /// Whether the process stays on one core.
        pin: bool,
    },
}

impl Arguments {
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut words = words;
        let mut name = None;
        let mut scale = Scale::FULL;
        let mut pin = false;
        while let Some(word) = words.next() {
            match word.as_str() {
                "--list" => return Ok(Self::List),
                "--check" => scale = Scale::CHECK,
                "--pin" => pin = true,
                "--scale" => scale = Scale::parse(words.next().as_deref().unwrap_or(""))?,
                _ if name.is_none() && !word.starts_with('-') => name = Some(word),
                _ => return Err(format!("`{word}` is not understood")),
            }
        }
        let name = name.ok_or("name a workload")?;
        Ok(Self::Run { name, scale, pin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_run_is_named_scaled_and_pinned() {
        let run = |scale, pin| {
            Ok(Arguments::Run {
                name: "boxes".to_owned(),
                scale,
                pin,
            })
        };
        assert_eq!(parse("boxes"), run(Scale::FULL, false));
        assert_eq!(parse("--pin boxes --check"), run(Scale::CHECK, true));
        let half = Scale::parse("0.5").unwrap();
        assert_eq!(parse("boxes --scale 0.5"), run(half, false));
        assert_eq!(parse("--list"), Ok(Arguments::List));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "",
            "--pin",
            "boxes trees-1",
            "boxes --quick",
            "boxes --scale",
            "boxes --scale 0",
            "boxes --scale -1",
            "boxes --scale inf",
            "boxes --scale many",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
