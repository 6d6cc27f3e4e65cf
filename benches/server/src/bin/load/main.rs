//! The load generator: starts servers in turn, sends requests in bursts, checks every answer, and prints one
//! table.

mod arguments;
mod client;
mod report;
mod server;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arguments::{BURST, IDLE, LoadArguments};
use client::{Client, Digests};
use report::{LoadReport, ServerRun};
use server::{ServerProcess, memory};

/// Maximum number of requests of a connection in one burst, which also bounds the requests of a run.
const MAX_REQUESTS: usize = 100_000;

fn main() -> ExitCode {
    let arguments = match LoadArguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    match measure(&arguments) {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &LoadArguments) -> Result<LoadReport, String> {
    // Uses half of the cores, since the server has threads for all of them.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(2))
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let digests = Digests::new();
    let mut report = LoadReport::default();
    for round in 0..arguments.rounds {
        // Reversed every other time, so that no server always runs after the same neighbour.
        let mut servers: Vec<_> = arguments.servers.iter().collect();
        if round % 2 == 1 {
            servers.reverse();
        }
        for (name, program) in servers {
            eprintln!("round {} of {}: {name}", round + 1, arguments.rounds);
            let run = runtime
                .block_on(run(arguments, program, &digests))
                .map_err(|message| format!("{name}: {message}"))?;
            report.add(name, run);
        }
    }
    Ok(report)
}

/// The interval between two readings of a server's memory.
const LOOK: Duration = Duration::from_millis(250);

/// Runs one server, from its start to its end.
async fn run(
    arguments: &LoadArguments,
    program: &Path,
    digests: &Arc<Digests>,
) -> Result<ServerRun, String> {
    let server = ServerProcess::start(program)?;
    let mut run = ServerRun::default();
    let looks = Arc::new(Mutex::new(Vec::new()));
    let looking = tokio::spawn(look(server.id(), Arc::clone(&looks)));
    for burst in 0..arguments.bursts() {
        let start = Instant::now();
        let clients: Vec<_> = (0..arguments.connections)
            .map(|seed| {
                let client = Client::new(server.port, Arc::clone(digests), seed.into(), burst);
                tokio::spawn(client.run(start + BURST, MAX_REQUESTS))
            })
            .collect();
        for client in clients {
            let times = client.await.map_err(|error| error.to_string())?;
            run.times.append(&mut times?);
        }
        run.seconds += start.elapsed().as_secs_f64();
        tokio::time::sleep(IDLE).await;
        run.idle_rss_bytes.push(memory(server.id())?.rss_bytes);
    }
    looking.abort();
    run.rss_bytes = std::mem::take(&mut *looks.lock().unwrap_or_else(PoisonError::into_inner));
    // The live bytes at the end are requested after the last reading of the memory.
    let end = memory(server.id())?;
    run.end_rss_bytes = end.rss_bytes;
    run.peak_rss_bytes = end.peak_rss_bytes;
    run.end_text_bytes = client::stats(server.port).await?.text_bytes as u64;
    server.end()?;
    Ok(run)
}

/// Records a server's memory until it is stopped.
async fn look(id: u32, looks: Arc<Mutex<Vec<u64>>>) {
    while let Ok(memory) = memory(id) {
        let lock = || looks.lock().unwrap_or_else(PoisonError::into_inner);
        lock().push(memory.rss_bytes);
        tokio::time::sleep(LOOK).await;
    }
}
