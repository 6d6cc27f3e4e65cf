//! The program `larder`; everything it does lives in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    larder_cli::run()
}
