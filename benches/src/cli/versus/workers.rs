//! The programs that take part, built or found.

use indicatif::ProgressBar;

use super::{VersusArgs, chosen_workloads};
use crate::cli::{Failure, complain};
use crate::versus::allocators::LARDER;
use crate::versus::rounds::takes_part;
use crate::versus::workers::built_earlier;
use crate::versus::{ALLOCATORS, Allocator, BuildError, Package, Profile, Worker};

/// The workers, and the allocators without one.
#[derive(Default)]
pub(super) struct BuiltWorkers {
    pub(super) workers: Vec<Worker>,
    /// The latter, with what is wrong.
    pub(super) skipped: Vec<String>,
    /// Those among them that somebody wants for certain.
    missed: Vec<&'static str>,
}

impl BuiltWorkers {
    /// Builds or finds the workers that have something to do. Allocators that do not build are told
    /// and left out.
    pub(super) fn build_all(args: &VersusArgs, progress: &ProgressBar) -> Result<Self, Failure> {
        let package = match args.workers {
            Some(_) => None,
            None => Some(Package::beside_this().map_err(not_built)?),
        };
        let chosen = chosen_allocators(args);
        let profiles = args.profile.each();
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
                    Err(error) => {
                        progress.suspend(|| built.skip(allocator, *profile, &error, args));
                    }
                }
            }
        }
        if built.workers.is_empty() {
            let message = "there is no program to run".to_owned();
            return Err(Failure::Failed(message));
        }
        Ok(built)
    }

    /// A peer that does not build on this machine is no reason to stop.
    fn skip(
        &mut self,
        allocator: &Allocator,
        profile: Profile,
        error: &BuildError,
        args: &VersusArgs,
    ) {
        let name = allocator.name;
        complain(&format!("{name} ({profile}) is left out: {error}"));
        let message = error.to_string();
        let first = message.lines().next().unwrap_or("");
        self.skipped.push(format!("{name} ({profile}): {first}"));
        if allocator.name == LARDER || args.allocators.iter().any(|asked| asked == name) {
            let known = ALLOCATORS.iter().find(|known| known.name == name);
            self.missed.extend(known.map(|known| known.name));
        }
    }

    /// Whether all are here that somebody wants for certain.
    pub(super) fn complete(&self) -> Result<(), Failure> {
        if self.missed.is_empty() {
            return Ok(());
        }
        let names = self.missed.join(", ");
        Err(Failure::Failed(format!("{names} could not take part")))
    }
}

fn not_built(error: BuildError) -> Failure {
    Failure::Failed(error.to_string())
}

/// All, or the named ones in the order of the list, as far as what is asked for concerns them.
fn chosen_allocators(args: &VersusArgs) -> Vec<&'static Allocator> {
    let asked = args.asked();
    let names = &args.allocators;
    let named = |known: &Allocator| names.is_empty() || names.iter().any(|n| n == known.name);
    let mut workloads = Vec::new();
    if asked.times {
        workloads.extend(chosen_workloads(&args.workloads));
    }
    if asked.instructions {
        workloads.extend(args.counted_workloads());
    }
    let concerned = |known: &Allocator| {
        let runs = workloads.iter().any(|workload| takes_part(known, workload));
        runs || (asked.idle && !known.steps_only)
    };
    let all = ALLOCATORS.iter();
    all.filter(|known| named(known) && concerned(known))
        .collect()
}
