//! The worker programs that take part, either built now or found in a folder.

use indicatif::ProgressBar;

use super::VersusArgs;
use crate::commands::{Failure, complain};
use crate::versus::allocators::LARDER;
use crate::versus::rounds::takes_part;
use crate::versus::workers::built_earlier;
use crate::versus::{ALLOCATORS, Allocator, Package, Profile, Worker};

/// The workers that were built or found, and the allocators without a worker.
#[derive(Default)]
pub(super) struct BuiltWorkers {
    pub(super) workers: Vec<Worker>,
    /// The allocators without a worker, with the reason.
    pub(super) skipped: Vec<String>,
    /// The allocators without a worker that may not be missing: Larder, and those that the user named.
    missed: Vec<&'static str>,
}

impl BuiltWorkers {
    /// Builds or finds the required workers. Allocators that do not build are reported and omitted.
    pub(super) fn build_all(args: &VersusArgs, progress: &ProgressBar) -> Result<Self, Failure> {
        let package = match args.workers {
            Some(_) => None,
            None => Some(Package::beside_this().map_err(Failure::Failed)?),
        };
        let chosen = chosen_allocators(args);
        let profiles = args.profiles();
        progress.set_length((chosen.len() * profiles.len()) as u64);
        let mut built = Self::default();
        for profile in profiles {
            for allocator in &chosen {
                progress.set_message(format!("building {} ({profile})", allocator.name));
                let worker = match (&args.workers, &package) {
                    (Some(folder), _) => built_earlier(folder, allocator, *profile),
                    (None, Some(package)) => package.build(allocator, *profile),
                    (None, None) => continue,
                };
                progress.inc(1);
                match worker {
                    Ok(worker) => built.workers.push(worker),
                    Err(why) => progress.suspend(|| built.skip(allocator, *profile, &why, args)),
                }
            }
        }
        if built.workers.is_empty() {
            let message = "there is no program to run".to_owned();
            return Err(Failure::Failed(message));
        }
        Ok(built)
    }

    /// Reports an allocator that does not build, and omits it.
    fn skip(&mut self, allocator: &Allocator, profile: Profile, why: &str, args: &VersusArgs) {
        let name = allocator.name;
        complain(&format!("{name} ({profile}) is left out: {why}"));
        let first = why.lines().next().unwrap_or("");
        self.skipped.push(format!("{name} ({profile}): {first}"));
        if name == LARDER || args.allocators.iter().any(|asked| asked == name) {
            self.missed.push(name);
        }
    }

    /// Returns an error if Larder, or an allocator that the user named, has no worker.
    pub(super) fn complete(&self) -> Result<(), Failure> {
        if self.missed.is_empty() {
            return Ok(());
        }
        let names = self.missed.join(", ");
        Err(Failure::Failed(format!("{names} could not take part")))
    }
}

/// Returns the allocators, or the named ones, that run any of the requested workloads, in the order of the list.
fn chosen_allocators(args: &VersusArgs) -> Vec<&'static Allocator> {
    let names = &args.allocators;
    let named = |known: &Allocator| names.is_empty() || names.iter().any(|n| n == known.name);
    let mut workloads = Vec::new();
    if args.wants_times() || args.tail {
        workloads.extend(args.chosen_workloads());
    }
    if args.wants_instructions() {
        workloads.extend(args.counted_workloads());
    }
    let concerned =
        |known: &Allocator| workloads.iter().any(|workload| takes_part(known, workload));
    let all = ALLOCATORS.iter();
    all.filter(|known| named(known) && concerned(known))
        .collect()
}
