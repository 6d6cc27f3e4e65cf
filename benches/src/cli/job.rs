//! `larder job`: a recorded trace as a job under control.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use larder_cuda::driver::Choice;
use serde::Serialize;

use super::control::parse_limit;
use super::replay::DriverChoice;
use super::top::parse_interval;
use super::{Failure, complain};
use crate::share::alive::Alive;
use crate::share::files::JobFiles;
use crate::share::job::{Figures, Host, JobScript, Play, Until, play};
use crate::share::view::JobView;
use larder_trace::Trace;

/// Replays traces as one of several jobs on a GPU: it obeys its control file, writes its status, and checks
/// what it wrote.
///
/// Ends with 1 if a byte was not as it had been written or memory was refused on every side.
#[derive(Debug, Args)]
pub(super) struct JobArgs {
    /// Traces in format v1, played one after the other
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// A folder for both files, `NAME.control.json` and `NAME.status.json`
    #[arg(long = "in", value_name = "FOLDER", conflicts_with_all = ["control", "status"])]
    folder: Option<PathBuf>,

    /// The control file
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,

    /// The status file
    #[arg(long, value_name = "FILE")]
    status: Option<PathBuf>,

    /// The job's name; without it, the first trace's
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The job's priority: higher is more important
    #[arg(long, value_name = "P", default_value = "0", value_parser = clap::value_parser!(i64).range(0..))]
    priority: i64,

    /// How often each trace is played before the next one
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        conflicts_with = "seconds"
    )]
    passes: NonZeroU32,

    /// Play all traces in turn for so long, and to the end of a pass
    #[arg(long, value_name = "S", value_parser = parse_interval)]
    seconds: Option<Duration>,

    /// The limit it begins with; 0 where it has a control file, none elsewhere
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    limit: Option<u64>,

    /// What serves where the limit ends
    #[arg(long, value_name = "WHAT", default_value = "pinned")]
    host: Host,

    /// Divides all sizes
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    scale: u64,

    /// Which driver; without it as `LARDER_CUDA_DRIVER` says, and auto where that says nothing
    #[arg(long, value_name = "WHICH")]
    driver: Option<DriverChoice>,
}

/// What is printed at the end.
#[derive(Serialize)]
struct JobOutcome<'a> {
    name: &'a str,
    #[serde(flatten)]
    figures: &'a Figures,
    seconds: f64,
}

impl JobArgs {
    fn files(&self, name: &str) -> Result<(Option<PathBuf>, Option<PathBuf>), Failure> {
        let Some(folder) = &self.folder else {
            return Ok((self.control.clone(), self.status.clone()));
        };
        if !folder.is_dir() {
            let error = format!("there is no folder {}", folder.display());
            return Err(Failure::Arguments(error));
        }
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            let error = format!(
                "`{name}` cannot name files: take a name without `/` that does not begin with a point"
            );
            return Err(Failure::Arguments(error));
        }
        let files = JobFiles::ours(folder, name);
        // Two with one control file would each hold its limit.
        let view = JobView::look(&files, SystemTime::now());
        if let (Alive::Yes, false, Some(pid)) = (view.alive, view.ended, view.pid) {
            let error =
                format!("{name} is there, process {pid}: end it first, or take another name");
            return Err(Failure::Arguments(error));
        }
        Ok((Some(files.control), Some(files.status)))
    }

    fn driver(&self) -> Result<Choice, Failure> {
        if let Some(choice) = self.driver {
            return Ok(choice.into());
        }
        let said = Choice::from_env().map_err(|error| Failure::Arguments(error.to_string()))?;
        Ok(said.unwrap_or_default())
    }
}

pub(super) fn run(args: &JobArgs) -> Result<(), Failure> {
    let traces: Result<Vec<_>, _> = args.traces.iter().map(|path| Trace::load(path)).collect();
    let traces = traces.map_err(|error| Failure::Arguments(error.to_string()))?;
    let scripts: Vec<_> = traces
        .iter()
        .map(|trace| JobScript::new(trace, args.scale))
        .collect();
    let first = traces.first().map_or("job", Trace::name);
    let name = args.name.clone().unwrap_or_else(|| first.to_owned());
    let (control, status) = args.files(&name)?;
    let unlimited = if control.is_some() { 0 } else { u64::MAX };
    let job = Play {
        priority: args.priority,
        limit_bytes: args.limit.unwrap_or(unlimited),
        control,
        status,
        host: args.host,
        until: match args.seconds {
            Some(time) => Until::Time(time),
            None => Until::Passes(args.passes),
        },
        driver: args.driver()?,
        name,
    };
    let start = Instant::now();
    let figures = play(&job, &scripts, |stopper| {
        if let Err(error) = ctrlc::set_handler(move || stopper.stop()) {
            complain(&format_args!("signals end it at once: {error}"));
        }
    })
    .map_err(|error| Failure::Failed(error.to_string()))?;
    let outcome = JobOutcome {
        name: &job.name,
        figures: &figures,
        seconds: start.elapsed().as_secs_f64(),
    };
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &outcome).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()?;
    if figures.wrong_bytes > 0 {
        let error = format!("{} bytes were not as written", figures.wrong_bytes);
        return Err(Failure::Failed(error));
    }
    Ok(())
}
