//! What can go wrong with the driver: at a call, and when it is looked for.

use core::fmt;
use std::path::PathBuf;

use larder_cuda_abi::Code;

/// A driver call was refused, or could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver answered something else than success.
    Call {
        /// The function, by its name in the driver's library.
        function: &'static str,
        /// Its answer.
        code: Code,
    },
    /// The driver is older than the function.
    Missing {
        /// The function, by its name in the driver's library.
        function: &'static str,
        /// The first version of the interface that has it, like 11020 for 11.2.
        needs_version: u32,
        /// The version of the driver.
        version: u32,
    },
    /// The device cannot do what an object needs.
    Unsupported {
        /// What.
        what: &'static str,
        /// The device's ordinal.
        device: i32,
    },
    /// A size of zero, not a multiple of what the driver maps, or beyond the address space.
    Size {
        /// The size.
        bytes: u64,
    },
    /// No free place is that large among the addresses that were reserved.
    Addresses {
        /// The size.
        bytes: u64,
    },
    /// Managed memory would hold more than the device has free.
    Oversubscribed {
        /// Bytes that would be held.
        bytes: u64,
        /// Bytes that may be held.
        free_bytes: u64,
    },
    /// Nothing that was given lies at this address, or not all of it.
    NotOurs {
        /// The address.
        address: u64,
    },
    /// The driver was not asked: a budget of the program has no room.
    Budget,
}

impl DriverError {
    /// The driver's answer, if there was one.
    pub const fn code(self) -> Option<Code> {
        match self {
            Self::Call { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether memory was missing, so that giving some back may help.
    pub fn is_out_of_memory(self) -> bool {
        self.code() == Some(Code::OUT_OF_MEMORY) || matches!(self, Self::Oversubscribed { .. })
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Call { function, code } => {
                write!(f, "{function} answered ")?;
                match (code.name(), code.meaning()) {
                    (Some(name), Some(meaning)) => write!(f, "{name}: {meaning}")?,
                    _ => write!(f, "code {}, which is newer than this program", code.0)?,
                }
                advice(code).map_or(Ok(()), |advice| write!(f, "; {advice}"))
            }
            Self::Missing {
                function,
                version,
                needs_version,
            } if version >= needs_version => write!(
                f,
                "the driver, of version {}, lacks {function}; repair its installation",
                Version(version)
            ),
            Self::Missing {
                function,
                needs_version,
                version,
            } => write!(
                f,
                "{function} came with version {} of CUDA and the driver is of {}; use a newer \
                 driver, or do without",
                Version(needs_version),
                Version(version)
            ),
            Self::Unsupported { what, device } => {
                write!(
                    f,
                    "device {device} does not support {what}; use another kind of memory"
                )
            }
            Self::Size { bytes } => write!(
                f,
                "no memory of {bytes} bytes: a size is above zero, whole pages where pages are \
                 mapped, and within the address space"
            ),
            Self::Addresses { bytes } => write!(
                f,
                "no {bytes} bytes of the reserved addresses are free in one piece; give memory \
                 back, or reserve more (VirtualConfig::address_bytes)"
            ),
            Self::Oversubscribed { bytes, free_bytes } => write!(
                f,
                "{bytes} bytes of managed memory where {free_bytes} may be held; free some, or \
                 raise the limit"
            ),
            Self::NotOurs { address } => write!(
                f,
                "nothing that was given lies whole at {address:#x}; give back what was given"
            ),
            Self::Budget => f.write_str(
                "a budget of the program has no room; free and release memory there, or raise its limit",
            ),
        }
    }
}

impl core::error::Error for DriverError {}

/// A version as people write it: 12080 is 12.8.
#[derive(Clone, Copy)]
pub(super) struct Version(pub(super) u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// What to do about it, for answers that people meet.
const fn advice(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::OUT_OF_MEMORY => "give memory back, or ask for less",
        Code::NO_DEVICE => "look at CUDA_VISIBLE_DEVICES, and whether nvidia-smi sees the device",
        Code::INVALID_DEVICE => "ordinals are below Driver::device_count",
        Code::INVALID_CONTEXT => "make the call inside Context::with_current",
        Code::ILLEGAL_ADDRESS | Code::LAUNCH_FAILED | Code::ASSERT | Code::MISALIGNED_ADDRESS => {
            "device work failed before: the process must start anew"
        }
        Code::STREAM_CAPTURE_UNSUPPORTED | Code::STREAM_CAPTURE_IMPLICIT => {
            "end the capture first, or capture in relaxed mode"
        }
        Code::NOT_SUPPORTED => "ask DeviceInfo what the device supports",
        Code::SYSTEM_DRIVER_MISMATCH => "the library and the kernel's driver differ: restart",
        Code::STUB_LIBRARY => "take the folder of stubs off the library path",
        Code::HOST_MEMORY_ALREADY_REGISTERED => "register a range once",
        _ => return None,
    })
}

/// No driver could be had, or not the one that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// `LARDER_CUDA_DRIVER` says something else than its three words.
    Choice {
        /// What it says.
        value: String,
    },
    /// The stand-in's library was not found.
    NoStandIn {
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// The library at the stand-in's path is another one.
    NotStandIn {
        /// The path.
        path: PathBuf,
    },
    /// The stand-in is older or newer than this program.
    StandInVersion {
        /// Its path.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// A library could not be opened.
    Open {
        /// Its path or name.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// No library of the real driver was found.
    NoReal {
        /// Each name tried and the system's words.
        tried: Vec<(String, String)>,
    },
    /// What was found under the real driver's name is a stand-in.
    Posing {
        /// Its path or name.
        path: PathBuf,
    },
    /// The library lacks a function that every driver has.
    Symbol {
        /// Its path or name.
        path: PathBuf,
        /// The function.
        function: &'static str,
    },
    /// The driver has no device.
    NoDevice {
        /// Its path or name.
        path: PathBuf,
    },
    /// cudarc, or the program itself, is bound to another driver already.
    OtherDriver {
        /// The driver that was asked for.
        path: PathBuf,
    },
    /// The process has a driver already, of the other kind.
    Contradiction {
        /// Where that driver was loaded from.
        loaded: PathBuf,
    },
    /// Neither the real driver nor the stand-in could be had.
    Neither {
        /// What is wrong with the real one.
        real: Box<Self>,
        /// What is wrong with the stand-in.
        stand_in: Box<Self>,
    },
    /// A call was refused that the start of the driver or of a context needs.
    Call(DriverError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Choice { value } => write!(
                f,
                "LARDER_CUDA_DRIVER is \"{value}\"; it must be stand-in, real or auto"
            ),
            Self::NoStandIn { looked } => {
                f.write_str("no stand-in driver at")?;
                for path in looked {
                    write!(f, " {}", path.display())?;
                }
                f.write_str("; build larder-cuda-stand-in, or set LARDER_CUDA_STAND_IN to its path")
            }
            Self::NotStandIn { path } => write!(
                f,
                "{} is not a stand-in driver; set LARDER_CUDA_STAND_IN to one",
                path.display()
            ),
            Self::StandInVersion { path, version } => write!(
                f,
                "the stand-in driver {} is of version {version} and this program needs {}; build \
                 both from the same sources",
                path.display(),
                larder_cuda_abi::stand_in::VERSION
            ),
            Self::Open { path, reason } => {
                write!(f, "{} could not be opened: {reason}", path.display())
            }
            Self::NoReal { tried } => {
                f.write_str("no CUDA driver was found")?;
                for (name, reason) in tried {
                    write!(f, "; {name}: {reason}")?;
                }
                f.write_str("; install NVIDIA's driver, or set LARDER_CUDA_DRIVER=stand-in")
            }
            Self::Posing { path } => write!(
                f,
                "{} poses as the CUDA driver but is a stand-in; take it off the library path, or \
                 set LARDER_CUDA_DRIVER=stand-in",
                path.display()
            ),
            Self::Symbol { path, function } => write!(
                f,
                "{} lacks {function}, which every CUDA driver from 10.2 on has; use a newer driver",
                path.display()
            ),
            Self::NoDevice { path } => write!(
                f,
                "the driver {} has no device; look at CUDA_VISIBLE_DEVICES, or set \
                 LARDER_CUDA_DRIVER=stand-in",
                path.display()
            ),
            Self::OtherDriver { path } => write!(
                f,
                "cudarc uses another driver than {}; load the driver before the first use of \
                 cudarc, and link the program with no other",
                path.display()
            ),
            Self::Contradiction { loaded } => write!(
                f,
                "the process uses the driver {} already, and has only one; ask for that, or for \
                 auto",
                loaded.display()
            ),
            Self::Neither { real, stand_in } => write!(f, "{real}; and {stand_in}"),
            Self::Call(error) => write!(f, "the driver or a context did not start: {error}"),
        }
    }
}

impl core::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Call(error) => Some(error),
            _ => None,
        }
    }
}

impl From<DriverError> for LoadError {
    fn from(error: DriverError) -> Self {
        Self::Call(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_failed_and_what_to_do() {
        let error = DriverError::Call {
            function: "cuMemAlloc_v2",
            code: Code::OUT_OF_MEMORY,
        };
        let text = error.to_string();
        assert!(text.contains("cuMemAlloc_v2") && text.contains("CUDA_ERROR_OUT_OF_MEMORY"));
        assert!(text.contains("give memory back"), "{text}");
        assert!(error.is_out_of_memory());
    }

    #[test]
    fn a_code_without_a_name_is_a_number() {
        let error = DriverError::Call {
            function: "cuInit",
            code: Code(77_777),
        };
        assert!(error.to_string().contains("77777"));
    }

    #[test]
    fn a_missing_function_names_both_versions() {
        let error = DriverError::Missing {
            function: "cuMemPoolCreate",
            needs_version: 11_020,
            version: 10_020,
        };
        let text = error.to_string();
        assert!(text.contains("11.2") && text.contains("10.2"), "{text}");
    }
}
