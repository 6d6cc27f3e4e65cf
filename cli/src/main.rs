//! The program `larder`; all its code is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    larder_cli::run()
}
