//! The command line of the load generator.

use std::path::PathBuf;
use std::time::Duration;

pub const USAGE: &str = "load [--seconds N] [--rounds N] [--connections N] NAME=SERVER...";

/// A server's phases: one under load, one idle.
pub const BURST: Duration = Duration::from_secs(3);
pub const IDLE: Duration = Duration::from_secs(3);

#[derive(Debug, PartialEq, Eq)]
pub struct LoadArguments {
    /// The approximate time of each server in one round.
    pub seconds: u64,
    /// The number of rounds.
    pub rounds: u32,
    pub connections: u32,
    /// The allocator's name and its program.
    pub servers: Vec<(String, PathBuf)>,
}

impl LoadArguments {
    pub fn parse(given: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            seconds: 30,
            rounds: 2,
            connections: 64,
            servers: Vec::new(),
        };
        let mut given = given;
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--seconds" => arguments.seconds = number(given.next(), &argument)?.into(),
                "--rounds" => arguments.rounds = number(given.next(), &argument)?,
                "--connections" => arguments.connections = number(given.next(), &argument)?,
                _ => {
                    let server = argument.split_once('=').ok_or(USAGE)?;
                    arguments
                        .servers
                        .push((server.0.to_owned(), server.1.into()));
                }
            }
        }
        match arguments.servers.is_empty() {
            true => Err(USAGE.to_owned()),
            false => Ok(arguments),
        }
    }

    /// Returns the bursts of one run.
    pub fn bursts(&self) -> u64 {
        self.seconds.div_ceil((BURST + IDLE).as_secs())
    }
}

fn number(given: Option<String>, name: &str) -> Result<u32, String> {
    let number = given.and_then(|number| number.parse().ok());
    number
        .filter(|number| (1..=3600).contains(number))
        .ok_or_else(|| format!("{name} takes a number from 1 to 3600"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &str) -> Result<LoadArguments, String> {
        LoadArguments::parse(given.split(' ').map(String::from))
    }

    #[test]
    fn servers_have_names() {
        let arguments = parse("--seconds 11 --rounds 3 a=/b/c d=e").unwrap();
        assert_eq!((arguments.seconds, arguments.rounds), (11, 3));
        assert_eq!(arguments.bursts(), 2);
        assert_eq!(arguments.servers[1], ("d".to_owned(), "e".into()));
    }

    #[test]
    fn nonsense_is_refused() {
        for nonsense in [
            "a",
            "--seconds a=b",
            "--rounds 0 a=b",
            "--seconds",
            "--what 3 a=b",
        ] {
            assert!(parse(nonsense).is_err(), "{nonsense}");
        }
    }
}
