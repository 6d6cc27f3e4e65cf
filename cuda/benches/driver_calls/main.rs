//! The time of each driver call that an allocator makes, by size and by number of handles, and
//! whether it waits for a busy stream.
//!
//! ```text
//! cargo bench -p larder-cuda --bench driver_calls                 a table
//! cargo bench -p larder-cuda --bench driver_calls -- --json       one JSON object a line
//! cargo bench -p larder-cuda --bench driver_calls -- --most-bytes 1073741824 --rounds 9
//! ```
//!
//! On the stand-in the numbers say nothing about a GPU: there it only shows that the program works.
//! Figures of real hardware, with machine and commit, are kept in `benches/results/`.

mod busy;
mod pages;
mod plain;
mod streams;
mod watch;

use std::process::ExitCode;

use larder_cuda::Context;
use larder_cuda::driver::load_from_env;
use watch::{Report, Settings};

fn main() -> ExitCode {
    let settings = match Settings::from_args(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(wrong) => {
            eprintln!("{wrong}");
            return ExitCode::from(2);
        }
    };
    match measure(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("driver_calls: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(settings: Settings) -> Result<(), Box<dyn std::error::Error>> {
    let driver = load_from_env()?;
    let context = Context::new(0)?;
    let name = context.cudarc().name()?;
    let mut report = Report::new(settings, &format!("{driver}; {name}"));
    context.try_current(|driver| {
        plain::device(&mut report, driver)?;
        plain::pinned(&mut report, driver)?;
        plain::registered(&mut report, driver)?;
        plain::managed(&mut report, driver)?;
        pages::addresses(&mut report, driver)?;
        pages::handles(&mut report, driver, context.ordinal())?;
        Ok(())
    })?;
    streams::pool(&mut report, &context)?;
    streams::events(&mut report, &context)?;
    streams::contexts(&mut report, &context)?;
    busy::waits(&mut report, &context)?;
    report.end();
    Ok(())
}
