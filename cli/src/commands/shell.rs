//! `larder completions` and `larder man`: a completion script for a shell, and pages for `man`.

use clap::{Args, Command};
use clap_complete::Shell;

use super::Failure;
use crate::report::print;

/// Prints a script with which a shell completes the program's arguments.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Prints the program's page for `man`, such as `larder man > larder.1`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The page of this command; without it, that of the program
    command: Option<String>,
}

pub(super) fn completions(args: &CompletionsArgs, program: &mut Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, program, "larder", &mut script);
    Ok(print(&String::from_utf8_lossy(&script))?)
}

pub(super) fn man(args: &ManArgs, mut program: Command) -> Result<(), Failure> {
    // This prefixes the commands' names with the program's name.
    program.build();
    let page = match &args.command {
        None => Some(&program),
        Some(name) => program.find_subcommand(name),
    };
    let wrong = || Failure::Arguments("no such command; `larder --help` lists them".to_owned());
    let page = page.ok_or_else(wrong)?.clone();
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    Ok(print(&String::from_utf8_lossy(&text))?)
}
