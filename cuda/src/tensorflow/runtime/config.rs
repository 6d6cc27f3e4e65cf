//! [`RuntimeConfig`]: all settings of a [`Runtime`](super::Runtime), as a plain value.
//!
//! The environment is read once, into this value, and never written, since setting a variable while another
//! thread reads it is undefined behavior.

use std::path::PathBuf;

use larder_core::prmalloc::PlannerConfig;

use crate::CheckedConfig;

/// One mebibyte.
const MIB: u64 = 1 << 20;

/// Default limit of host memory: 64 GiB.
const HOST_LIMIT_BYTES: u64 = 65_536 * MIB;

/// The allocator of a GPU's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum GpuKind {
    /// [`DeviceAllocator`](crate::DeviceAllocator): best fit in the order of streams.
    #[default]
    Default,
    /// [`DeviceAllocator`](crate::DeviceAllocator) with [checked memory](crate::CheckedMemory) for each
    /// stream, configured by [`RuntimeConfig::memory_guard`]. It has no host's side, even with
    /// [`RuntimeConfig::vmem`], and managed memory is refused, since neither could be checked in the order of
    /// a stream.
    MemoryGuard,
    /// One driver call for each block, for tools that check memory.
    CudaMalloc,
    /// [`DriverPool`](crate::DriverPool): the driver's own allocator.
    CudaMallocAsync,
    /// [`DeviceTensorPool`](crate::DeviceTensorPool): planned from steps, one pool for each stream.
    TensorPool,
}

impl GpuKind {
    /// Returns the kind that `TF_GPU_ALLOCATOR` names; `None` for an unknown name. Empty text is the default.
    pub fn of(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Default,
            "memory_guard" => Self::MemoryGuard,
            "cuda_malloc" => Self::CudaMalloc,
            "cuda_malloc_async" => Self::CudaMallocAsync,
            "tensorpool" => Self::TensorPool,
            _ => return None,
        })
    }

    /// Returns its name in the environment; empty for the default.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "",
            Self::MemoryGuard => "memory_guard",
            Self::CudaMalloc => "cuda_malloc",
            Self::CudaMallocAsync => "cuda_malloc_async",
            Self::TensorPool => "tensorpool",
        }
    }
}

/// An environment variable with an invalid value. Its default is in force instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name} is {text:?}: set it to {wanted}, or to nothing")]
#[non_exhaustive]
pub struct BadVariable {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub text: String,
    /// The values it accepts.
    pub wanted: &'static str,
}

/// All settings of a runtime. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct RuntimeConfig {
    /// Whether each NUMA node has its own allocator of plain memory; otherwise all plain memory counts as the
    /// first node's, and is bound to none.
    pub numa: bool,
    /// Whether plain host memory is allocated by best fit. `None` means that it is if a visitor of host
    /// memory is registered.
    pub cpu_bfc: Option<bool>,
    /// Maximum bytes of a best-fit allocator of host memory.
    pub cpu_limit_bytes: u64,
    /// Maximum bytes of pinned memory of each node.
    pub pinned_limit_bytes: u64,
    /// Maximum bytes of pinned memory on the host's side of a device (`vmem`).
    pub vmem_host_limit_bytes: u64,
    /// Allocator of a GPU's memory.
    pub gpu_kind: GpuKind,
    /// Checks of [`GpuKind::MemoryGuard`]. TensorFlow's variable selects [`CheckedConfig::memory_guard`]; a
    /// program may set [`CheckedConfig::new`], which also quarantines freed blocks, or
    /// [`CheckedConfig::tensorflow`], which aligns blocks to only 16 bytes.
    pub memory_guard: CheckedConfig,
    /// Overrides `allow_growth` of [`GpuOptions`](super::GpuOptions).
    pub force_growth: Option<bool>,
    /// Whether free regions are released when memory is short.
    pub collect_regions: bool,
    /// Whether blocks that do not fit on a device go to pinned memory.
    pub vmem: bool,
    /// Percentage of the device's memory in use above which no more blocks go to pinned memory.
    pub planned_percent: u64,
    /// How steps are planned.
    pub planner: PlannerConfig,
    /// The control file. If there is one, growth and vmem are on.
    pub config_file: Option<PathBuf>,
    /// The file that statistics are written to.
    pub status_file: Option<PathBuf>,
    /// Whether allocators of host memory record each allocation and free.
    pub log_memory: bool,
    /// Whether host memory of a CPU device is always pinned, as if each request asked for it.
    pub force_gpu_compatible: bool,
    /// Whether pinned memory always comes from the first node, whichever node was requested, as in TensorFlow
    /// 1.15.
    pub pinned_of_node_zero: bool,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            numa: false,
            cpu_bfc: None,
            cpu_limit_bytes: HOST_LIMIT_BYTES,
            pinned_limit_bytes: HOST_LIMIT_BYTES,
            vmem_host_limit_bytes: HOST_LIMIT_BYTES,
            gpu_kind: GpuKind::Default,
            memory_guard: CheckedConfig::memory_guard(),
            force_growth: None,
            collect_regions: true,
            vmem: true,
            planned_percent: 100,
            planner: PlannerConfig::new(),
            config_file: None,
            status_file: None,
            log_memory: false,
            force_gpu_compatible: false,
            pinned_of_node_zero: false,
        }
    }
}

impl RuntimeConfig {
    /// Reads the environment. Returns the settings, and the variables that could not be read. Invalid UTF-8
    /// in a value is replaced.
    ///
    /// # Errors
    /// If `TF_GPU_ALLOCATOR` is unknown, since the program would run on another allocator than intended.
    pub fn from_env() -> Result<(Self, Vec<BadVariable>), BadVariable> {
        Self::from_vars(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))
    }

    /// Reads the variables through `lookup`. Returns the settings, and the variables that could not be read.
    ///
    /// Booleans are `0`, `false`, `1` and `true` in any case; numbers are signed 64-bit decimals. The two
    /// variables that upstream compares exactly accept only `true` and `false`.
    ///
    /// # Errors
    /// If `TF_GPU_ALLOCATOR` is unknown.
    pub fn from_vars(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<(Self, Vec<BadVariable>), BadVariable> {
        let mut read = Read {
            lookup,
            bad: Vec::new(),
        };
        let base = Self::default();
        let pinned = read.mebibytes("TF_GPU_HOST_MEM_LIMIT_IN_MB");
        let config = Self {
            cpu_bfc: read.truth("TF_CPU_ALLOCATOR_USE_BFC"),
            cpu_limit_bytes: read
                .mebibytes("TF_CPU_BFC_MEM_LIMIT_IN_MB")
                .unwrap_or(base.cpu_limit_bytes),
            pinned_limit_bytes: pinned.unwrap_or(base.pinned_limit_bytes),
            vmem_host_limit_bytes: read
                .mebibytes("TF_CUDA_HOST_MEM_LIMIT_IN_MB")
                .unwrap_or(base.vmem_host_limit_bytes),
            gpu_kind: read.kind()?,
            force_growth: read.exact("TF_FORCE_GPU_ALLOW_GROWTH"),
            collect_regions: read
                .exact("TF_ENABLE_GPU_GARBAGE_COLLECTION")
                .unwrap_or(base.collect_regions),
            vmem: read.truth("TF_GPU_VMEM").unwrap_or(base.vmem),
            planned_percent: read.percent("TF_RO_PLANNED_GPU", base.planned_percent),
            planner: read.planner(base.planner),
            config_file: read.path("GPU_CONFIG_FILE"),
            status_file: read.path("GPU_STATUS_FILE"),
            ..base
        };
        Ok((config.with_forced(), read.bad))
    }

    /// Sets growth and vmem if there is a control file, since its limits need memory that grows and shrinks,
    /// and another place for blocks that do not fit.
    fn with_forced(mut self) -> Self {
        if self.config_file.is_some() {
            self.force_growth = Some(true);
            self.vmem = true;
        }
        self
    }
}

/// A look-up of variables, and the invalid ones found so far.
struct Read<L> {
    lookup: L,
    bad: Vec<BadVariable>,
}

impl<L: Fn(&str) -> Option<String>> Read<L> {
    /// Parses a variable; `None` if it is not set, or invalid.
    fn read<T>(
        &mut self,
        name: &'static str,
        wanted: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = (self.lookup)(name)?;
        let value = parse(&text);
        if value.is_none() {
            self.bad.push(BadVariable { name, text, wanted });
        }
        value
    }

    fn truth(&mut self, name: &'static str) -> Option<bool> {
        self.read(name, "0, 1, false or true", |text| {
            if text == "1" || text.eq_ignore_ascii_case("true") {
                return Some(true);
            }
            (text == "0" || text.eq_ignore_ascii_case("false")).then_some(false)
        })
    }

    fn exact(&mut self, name: &'static str) -> Option<bool> {
        self.read(name, "true or false, in small letters", |text| match text {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        })
    }

    /// Reads a number of mebibytes, as bytes.
    fn mebibytes(&mut self, name: &'static str) -> Option<u64> {
        self.read(name, "a number of MiB, 0 or more", |text| {
            let number = u64::try_from(text.parse::<i64>().ok()?).ok()?;
            number.checked_mul(MIB)
        })
    }

    fn percent(&mut self, name: &'static str, default: u64) -> u64 {
        let read = self.read(name, "a number of percent, 0 or more", |text| {
            u64::try_from(text.parse::<i64>().ok()?).ok()
        });
        read.unwrap_or(default)
    }

    /// Reads a path verbatim; an empty one counts as unset.
    fn path(&self, name: &'static str) -> Option<PathBuf> {
        let text = (self.lookup)(name)?;
        (!text.is_empty()).then(|| PathBuf::from(text))
    }

    fn kind(&self) -> Result<GpuKind, BadVariable> {
        let name = "TF_GPU_ALLOCATOR";
        let text = (self.lookup)(name).unwrap_or_default();
        GpuKind::of(&text).ok_or(BadVariable {
            name,
            text,
            wanted: "memory_guard, cuda_malloc, cuda_malloc_async or tensorpool",
        })
    }

    fn planner(&mut self, base: PlannerConfig) -> PlannerConfig {
        use larder_core::prmalloc::{
            ENABLE_MEMORY_OPTIMIZATION, MAX_STATISTIC_STEP, STABLE_STATISTIC_STEP,
            START_STATISTIC_STEP, STOP_STATISTIC_STEP,
        };
        let names = [
            ENABLE_MEMORY_OPTIMIZATION,
            START_STATISTIC_STEP,
            STABLE_STATISTIC_STEP,
            MAX_STATISTIC_STEP,
            STOP_STATISTIC_STEP,
        ];
        let texts = names.map(|name| (name, (self.lookup)(name)));
        let find = |wanted: &str| {
            let (_, text) = texts.iter().find(|(name, _)| *name == wanted)?;
            text.as_deref()
        };
        base.with_settings(find, |bad| {
            self.bad.push(BadVariable {
                name: bad.name,
                text: bad.text.to_owned(),
                wanted: bad.wanted,
            });
        })
    }
}
