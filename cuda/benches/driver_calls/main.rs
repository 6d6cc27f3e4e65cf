//! The time of each driver call that an allocator makes, by size and by number of handles, and
//! whether it waits for a busy stream.
//!
//! ```text
//! cargo bench -p larder-cuda --bench driver_calls                 a table
//! cargo bench -p larder-cuda --bench driver_calls -- --json       one JSON object a line
//! cargo bench -p larder-cuda --bench driver_calls -- --max-bytes 1073741824 --rounds 9
//! cargo bench -p larder-cuda --bench driver_calls -- --alias      memory at two addresses, by kernels that sum
//! cargo bench -p larder-cuda --bench driver_calls -- --captures   which calls spoil a capture, by mode and thread
//! cargo bench -p larder-cuda --bench driver_calls -- --unmap      memory that goes while a kernel uses it
//! ```
//!
//! The last three ask what documents leave open. They fail only where Larder rests on the answer: memory
//! at two addresses must be one memory from kernel to kernel.
//!
//! On the stand-in the numbers say nothing about a GPU: there it only shows that the program works.
//! Figures of real hardware, with machine and commit, are kept in `benches/results/`.

mod alias;
mod busy;
mod captures;
mod host;
mod kernels;
mod pages;
mod plain;
mod streams;
mod unmap;
mod watch;

use std::process::ExitCode;

use larder_cuda::Context;
use larder_cuda::driver::load_from_env;
use watch::{Part, Report, Settings};

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
    let part = settings.part.clone();
    if let Part::UnmapCase(case) = part {
        return unmap::case(&context, &case);
    }
    let mut report = Report::new(settings, &format!("{driver}; {name}"));
    match part {
        Part::Times => times(&mut report, &context)?,
        Part::Alias => alias::try_all(&mut report, &context)?,
        Part::Captures => captures::try_all(&mut report, &context)?,
        Part::Unmap | Part::UnmapCase(_) => unmap::try_all(&mut report)?,
    }
    report.end();
    Ok(())
}

fn times(report: &mut Report, context: &Context) -> Result<(), Box<dyn std::error::Error>> {
    context.try_current(|driver| {
        plain::device(report, driver)?;
        plain::pinned(report, driver)?;
        plain::registered(report, driver)?;
        plain::managed(report, driver)?;
        pages::addresses(report, driver)?;
        pages::handles(report, driver, context.ordinal())?;
        Ok(())
    })?;
    streams::pool(report, context)?;
    streams::events(report, context)?;
    streams::contexts(report, context)?;
    busy::waits(report, context)
}
