//! Builds the workers: one program for each allocator and profile.
//!
//! All workers share one target folder, separate from the repository's, so that common crates are
//! compiled once.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::allocators::Allocator;

/// The build settings of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Cargo's strongest settings: fat LTO, one codegen unit, no unwinding.
    Fat,
    /// Cargo's release profile, unchanged.
    Plain,
    /// A plain build that times each call of the allocator.
    Tail,
}

impl Profile {
    /// Returns the profile's name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fat => "fat",
            Self::Plain => "plain",
            Self::Tail => "tail",
        }
    }

    /// Returns the name of the Cargo profile in the worker package.
    const fn of_cargo(self) -> &'static str {
        match self {
            Self::Fat => "fat",
            Self::Plain | Self::Tail => "release",
        }
    }
}

impl Profile {
    /// Returns the arguments for a feature in addition to the allocator's, if the profile has one.
    const fn features(self) -> &'static [&'static str] {
        match self {
            Self::Fat | Self::Plain => &[],
            Self::Tail => &["--features", "tail"],
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A program that runs workloads on one allocator.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) allocator: &'static Allocator,
    pub(crate) profile: Profile,
    pub(crate) program: PathBuf,
}

/// The worker package, and the folder of its programs.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    folder: PathBuf,
    target: PathBuf,
}

impl Package {
    /// Returns the package in the checkout in which this program was compiled.
    pub(crate) fn beside_this() -> Result<Self, String> {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(target) if !target.is_empty() => PathBuf::from(target),
            _ => package.with_file_name("target"),
        };
        let workers = package.with_file_name("benches").join("versus-worker");
        Self::at(workers, target.join("versus"))
    }

    /// Returns the package in this folder.
    pub(crate) fn at(folder: PathBuf, target: PathBuf) -> Result<Self, String> {
        if !folder.join("Cargo.toml").is_file() {
            let folder = folder.display();
            return Err(format!(
                "no worker package in {folder}; install `larder` from a checkout: `cargo install --locked --path cli`"
            ));
        }
        // Cargo runs in another folder than this process.
        let absolute = std::path::absolute(&target);
        let target = absolute.map_err(|error| format!("{}: {error}", target.display()))?;
        Ok(Self { folder, target })
    }

    /// Builds a worker. This is fast if nothing has changed since the last build.
    pub(crate) fn build(
        &self,
        allocator: &'static Allocator,
        profile: Profile,
    ) -> Result<Worker, String> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // Cargo finds its settings, .cargo/config.toml, in the package's folder.
        let output = Command::new(cargo)
            .current_dir(&self.folder)
            .args(["build", "--quiet", "--no-default-features"])
            .args(["--message-format", "json-render-diagnostics"])
            .args(["--profile", profile.of_cargo()])
            .args(["--features", allocator.name])
            .args(profile.features())
            .arg("--target-dir")
            .arg(&self.target)
            .output()
            .map_err(|error| format!("cargo cannot be started: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let built = executable(&String::from_utf8_lossy(&output.stdout));
        match built {
            Some(built) if output.status.success() => self.keep(&built, allocator, profile),
            _ => Err(format!("does not build here; cargo says:\n{said}")),
        }
    }

    /// Copies the worker, since the next one is built with the same file name.
    fn keep(
        &self,
        built: &Path,
        allocator: &'static Allocator,
        profile: Profile,
    ) -> Result<Worker, String> {
        let folder = self.target.join("workers");
        let program = folder.join(file_name(allocator, profile));
        // The file is copied under another name and then renamed, since copying over the old worker
        // fails while that runs.
        let copy = program.with_extension("new");
        fs::create_dir_all(&folder)
            .and_then(|()| fs::copy(built, &copy))
            .and_then(|_| fs::rename(&copy, &program))
            .map_err(|error| format!("{}: {error}", program.display()))?;
        built_earlier(&folder, allocator, profile)
    }

    /// Returns the version of a crate with which the workers are built.
    pub(crate) fn version(&self, package: &str) -> Option<String> {
        let lock = fs::read_to_string(self.folder.join("Cargo.lock")).ok()?;
        version_in(&lock, package)
    }
}

/// Returns a worker that was built earlier.
pub(crate) fn built_earlier(
    folder: &Path,
    allocator: &'static Allocator,
    profile: Profile,
) -> Result<Worker, String> {
    let program = folder.join(file_name(allocator, profile));
    if !program.is_file() {
        return Err(format!("{} is missing", program.display()));
    }
    Ok(Worker {
        allocator,
        profile,
        program,
    })
}

fn file_name(allocator: &Allocator, profile: Profile) -> String {
    format!("{}-{profile}{}", allocator.name, env::consts::EXE_SUFFIX)
}

/// Returns the program named in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let values = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs =
        values.filter_map(|value| Some(PathBuf::from(value.get("executable")?.as_str()?)));
    programs.next_back()
}

/// Returns the version of a package in a lock file, where it follows the name.
fn version_in(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    let version = lines.nth(1)?.strip_prefix("version = \"")?;
    Some(version.strip_suffix('"')?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versus::allocators::{ALLOCATORS, find};

    #[test]
    fn the_program_is_found_among_the_messages_of_cargo() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
            not json\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/t/fat/worker\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/fat/worker")));
        assert_eq!(executable("{\"reason\":\"build-finished\"}"), None);
    }

    #[test]
    fn a_version_is_read_from_the_lock_file() {
        let lock = "[[package]]\nname = \"talc-more\"\nversion = \"1.0.0\"\n\n\
            [[package]]\nname = \"talc\"\nversion = \"5.1.1\"\n";
        assert_eq!(version_in(lock, "talc").as_deref(), Some("5.1.1"));
        assert_eq!(version_in(lock, "tal"), None);
    }

    #[test]
    fn the_worker_package_has_every_allocator_and_its_crate() {
        let package = Package::beside_this().unwrap();
        let manifest = fs::read_to_string(package.folder.join("Cargo.toml")).unwrap();
        for allocator in ALLOCATORS {
            let feature = format!("\n{} = [", allocator.name);
            assert!(manifest.contains(&feature), "{}", allocator.name);
            if let Some(name) = allocator.package {
                assert!(package.version(name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn a_missing_package_and_a_missing_program_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Package::at(folder.path().join("gone"), folder.path().to_owned());
        let message = missing.unwrap_err();
        assert!(message.contains("no worker package in"), "{message}");
        let system = find("system").unwrap();
        let error = built_earlier(folder.path(), system, Profile::Fat).unwrap_err();
        assert!(error.contains("system-fat"), "{error}");
    }

    #[test]
    fn what_cargo_says_is_reported_when_it_fails() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("Cargo.toml"), "[package]\nname = 3\n").unwrap();
        let package = Package::at(folder.path().to_owned(), folder.path().join("t")).unwrap();
        let error = package.build(find("system").unwrap(), Profile::Plain);
        let message = error.unwrap_err();
        assert!(message.contains("does not build here"), "{message}");
        assert!(message.contains("name"), "{message}");
    }
}
