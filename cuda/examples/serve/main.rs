//! Two models answer requests on one GPU, each with a paged KV cache; four kinds of memory are compared.
//!
//! ```text
//! cargo run --release -p larder-cuda --example serve
//! cargo run --release -p larder-cuda --example serve -- loads    # the traffic that each memory serves, a minute
//! LARDER_CUDA_DRIVER=stand-in cargo run --release -p larder-cuda --example serve    # even if there is a GPU
//! ```
//!
//! Its modules show:
//!
//! * `pools`: a `BlockPool` for each model. Half of the memory is guaranteed to each, and what one does not use is
//!   *lent* to the other, until it is recalled.
//! * `server`: the decode loop. `room`: what it does when memory is short, such as to answer recalls.
//! * `baselines`: the driver's own pool, and buffers that double and are copied.
//! * `day`: requests from a seed. Prompts and answers have long-tailed lengths, and traffic changes over the day.
//!
//! It ends with an error if a block had wrong bytes, or if lent memory served a request later than fixed halves, or
//! refused one that these served.

mod baselines;
mod cache;
mod day;
mod pools;
mod report;
mod room;
mod server;
mod table;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use baselines::{Doubling, DriverBlocks};
use day::{Request, Traffic};
use larder_cuda::Context;
use larder_cuda::driver::load_from_env;
use pools::{Pools, Share};
use report::Report;
use server::Server;

/// Any error: of the driver, of an allocation, or of a broken promise.
type Failure = Box<dyn std::error::Error>;

/// Days of each kind of traffic.
const SEEDS: u64 = 8;

/// The kinds of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Lent,
    Split,
    Driver,
    Doubling,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Lent, Self::Split, Self::Driver, Self::Doubling];

    const fn name(self) -> &'static str {
        match self {
            Self::Lent => "lent",
            Self::Split => "fixed halves",
            Self::Driver => "driver's pool",
            Self::Doubling => "doubling and copying",
        }
    }

    /// Makes a server with this memory.
    fn server(self, context: &Context) -> Result<Server, Failure> {
        Ok(match self {
            Self::Lent => Server::with_floor(Box::new(Pools::new(context, Share::Lent)?)),
            Self::Split => Server::new(Box::new(Pools::new(context, Share::Split)?)),
            Self::Driver => Server::new(Box::new(DriverBlocks::new(context)?)),
            Self::Doubling => Server::new(Box::new(Doubling::new(context)?)),
        })
    }
}

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        None => run(),
        Some("loads") => loads(),
        Some(other) => Err(format!("`{other}` is unknown: say `loads`, or nothing").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    load_from_env()?;
    let context = Context::new(0)?;
    let mut worse = 0;
    for traffic in Traffic::ALL {
        let mut days: [Vec<Report>; 4] = Default::default();
        for seed in 0..SEEDS {
            let day = serve(&context, &day::requests(traffic, 1.0, seed))?;
            for (days, day) in days.iter_mut().zip(day) {
                days.push(day);
            }
        }
        worse += days[0].iter().map(|day| day.lost + day.later).sum::<u64>();
        table::print(traffic, &days);
    }
    println!("refused or served later by lent than by fixed halves: {worse}");
    match worse {
        0 => Ok(()),
        worse => Err(format!("{worse} requests were worse off with lent memory").into()),
    }
}

/// Prints the largest traffic, in percent of the usual one, of which each memory refuses at most one request in a
/// hundred.
fn loads() -> Result<(), Failure> {
    load_from_env()?;
    let context = Context::new(0)?;
    for traffic in Traffic::ALL {
        print!("{traffic:?}:");
        for kind in Kind::ALL {
            let mut most = 0;
            for percent in (5..=200).step_by(5) {
                let (mut refused, mut all) = (0, 0);
                for seed in 0..SEEDS {
                    let day = day::requests(traffic, f64::from(percent) / 100.0, seed);
                    refused += kind.server(&context)?.run(&day, |_| {})?.refused;
                    all += day.len() as u64;
                }
                if 100 * refused > all {
                    break;
                }
                most = percent;
            }
            print!(" {} {most} %", kind.name());
        }
        println!();
    }
    Ok(())
}

/// Serves the same day with each kind of memory.
fn serve(context: &Context, requests: &[Request]) -> Result<Vec<Report>, Failure> {
    let days = Kind::ALL
        .iter()
        .map(|kind| kind.server(context)?.run(requests, |_| {}));
    let mut days: Vec<Report> = days.collect::<Result<_, _>>()?;
    let split = days[Kind::Split as usize].clone();
    days.iter_mut().for_each(|day| day.compare(&split));
    Ok(days)
}
