//! Errors of driver calls, and of finding the driver.

use core::fmt;
use std::path::PathBuf;

use larder_core::ByteCount;
use larder_cuda_abi::Code;
use thiserror::Error;

/// A driver call was refused, or could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver answered with a code other than success.
    #[error("{function} answered {}", Advice(*code))]
    Call {
        /// Name of the function in the driver's library.
        function: &'static str,
        /// The driver's answer.
        code: Code,
    },
    /// The driver lacks the function, in most cases because the driver is too old.
    #[error("{}", Age { function, needs: *needs_version, is: *version })]
    Missing {
        /// Name of the function in the driver's library.
        function: &'static str,
        /// The first version of the interface that has the function, such as 11020 for 11.2.
        needs_version: u32,
        /// The version of the driver.
        version: u32,
    },
    /// The device does not support a kind of memory or of access.
    #[error("device {device} does not support {what}; use another kind of memory")]
    Unsupported {
        /// The kind that the device does not support.
        what: &'static str,
        /// The device's ordinal.
        device: i32,
    },
    /// The size is zero, not a multiple of the page size, or beyond the address space.
    #[error(
        "{:#} is not a valid size: a size is above zero, in whole pages where pages are mapped, and within \
         the address space",
        ByteCount(*bytes)
    )]
    Size {
        /// The size.
        bytes: u64,
    },
    /// No free range among the reserved addresses is large enough.
    #[error(
        "the reserved addresses have no free range of {:#}; free memory, or reserve more \
         (VirtualConfig::address_bytes)",
        ByteCount(*bytes)
    )]
    Addresses {
        /// The size.
        bytes: u64,
    },
    /// Managed memory would hold more than the device has free.
    #[error(
        "{:#} of managed memory where {:#} may be held; free some, or raise the limit",
        ByteCount(*bytes),
        ByteCount(*free_bytes)
    )]
    Oversubscribed {
        /// Bytes that would be held.
        bytes: u64,
        /// Bytes that may be held.
        free_bytes: u64,
    },
    /// No allocated range lies at this address, or only part of one does.
    #[error("no whole allocated range lies at {address:#x}; pass a range that was allocated")]
    NotOurs {
        /// The address.
        address: u64,
    },
    /// Refused without a driver call because another process, or a card with which the memory is registered,
    /// may use the memory.
    #[error(
        "the memory at {address:#x} is exported or fixed; drop its ExportedBlock or FixedBlock first"
    )]
    Exported {
        /// Address of the mapping.
        address: u64,
    },
    /// Refused without a driver call because a budget of the program has no room.
    #[error(
        "a budget of the program has no room; free and release memory there, or raise its limit"
    )]
    Budget,
    /// Refused without a driver call because the memory is asleep.
    #[error("the memory sleeps; wake it first (DeviceAllocator::wake)")]
    Asleep,
}

impl DriverError {
    /// Returns the driver's code, if the driver answered.
    pub const fn code(self) -> Option<Code> {
        match self {
            Self::Call { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Returns whether device work or the device itself failed in such a way that every later driver call of
    /// this process fails the same way, as after an illegal address. From then on no memory is freed and no
    /// data can be trusted: end the process and restart it.
    pub fn is_fatal(self) -> bool {
        self.code().is_some_and(Code::is_fatal)
    }

    /// Returns whether there was too little memory, so that freeing some may help.
    pub fn is_out_of_memory(self) -> bool {
        self.code() == Some(Code::OUT_OF_MEMORY) || matches!(self, Self::Oversubscribed { .. })
    }
}

/// Prints the driver's answer and what to do about it.
struct Advice(Code);

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.0;
        match (code.name(), code.meaning()) {
            (Some(name), Some(meaning)) => write!(f, "{name}: {meaning}")?,
            _ => write!(f, "code {}, which is newer than this program", code.0)?,
        }
        advice(code).map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

/// Prints a function that the driver lacks, and whether the driver is older than the function.
struct Age {
    function: &'static str,
    needs: u32,
    is: u32,
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (function, needs, is) = (
            self.function,
            DriverVersion(self.needs),
            DriverVersion(self.is),
        );
        if self.is >= self.needs {
            return write!(
                f,
                "the driver, of version {is}, lacks {function}; repair its installation"
            );
        }
        write!(
            f,
            "{function} came with CUDA {needs}, and the driver is version {is}; use a newer driver, or \
             do without the function"
        )
    }
}

/// Prints a version as people write it: 12080 is 12.8.
#[derive(Clone, Copy)]
pub(super) struct DriverVersion(pub(super) u32);

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Returns advice on the answers that users may meet.
const fn advice(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::ECC_UNCORRECTABLE => {
            "the process must start anew, on another device if the error recurs: look at nvidia-smi -q -d ECC"
        }
        Code::NVLINK_UNCORRECTABLE => {
            "the process must start anew: look at nvidia-smi nvlink --errorcounters"
        }
        Code::LAUNCH_TIMEOUT => {
            "the process must start anew: make the kernel shorter, or take a device without a display"
        }
        Code::MPS_CLIENT_TERMINATED => {
            "the process must start anew: another one that shares the device may have failed"
        }
        Code::EXTERNAL_DEVICE => {
            "the process must start anew: look at what else works on the memory"
        }
        Code::OUT_OF_MEMORY => "give memory back, or ask for less",
        Code::NO_DEVICE => "look at CUDA_VISIBLE_DEVICES, and whether nvidia-smi sees the device",
        Code::INVALID_DEVICE => "ordinals are below Driver::device_count",
        Code::INVALID_CONTEXT => "make the call inside Context::with_current",
        _ if code.is_fatal() => "device work failed before: the process must start anew",
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

/// No driver could be loaded, or not the one requested.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// `LARDER_CUDA_DRIVER` is none of the three words allowed.
    #[error("LARDER_CUDA_DRIVER is \"{value}\"; it must be stand-in, real or auto")]
    Choice {
        /// The variable's value.
        value: String,
    },
    /// The stand-in's library was not found.
    #[error(
        "no stand-in driver at{}; build larder-cuda-stand-in, or set LARDER_CUDA_STAND_IN to its path",
        Looked(looked)
    )]
    NoStandIn {
        /// The paths that were tried.
        looked: Vec<PathBuf>,
    },
    /// The library at the stand-in's path is not a stand-in.
    #[error("{path} is not a stand-in driver; set LARDER_CUDA_STAND_IN to one")]
    NotStandIn {
        /// The path.
        path: PathBuf,
    },
    /// The stand-in is older or newer than this program.
    #[error(
        "the stand-in driver {path} is of version {version} and this program needs {}; build both from the same sources",
        larder_cuda_abi::stand_in::VERSION
    )]
    StandInVersion {
        /// The library's path.
        path: PathBuf,
        /// The stand-in's version.
        version: u32,
    },
    /// A library could not be opened.
    #[error("{path} could not be opened: {reason}")]
    Open {
        /// The library's path or name.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// No library of the real driver was found.
    #[error(
        "no CUDA driver was found{}; install NVIDIA's driver, or set LARDER_CUDA_DRIVER=stand-in",
        Tried(tried)
    )]
    NoReal {
        /// Each name that was tried, with the system's message.
        tried: Vec<(String, String)>,
    },
    /// The library with the real driver's name is a stand-in.
    #[error(
        "{path} poses as the CUDA driver but is a stand-in; take it off the library path, or set \
         LARDER_CUDA_DRIVER=stand-in"
    )]
    Posing {
        /// The library's path or name.
        path: PathBuf,
    },
    /// The library lacks a function that every driver has.
    #[error(
        "{path} lacks {function}, which every CUDA driver from 10.2 on has; use a newer driver"
    )]
    Symbol {
        /// The library's path or name.
        path: PathBuf,
        /// The function.
        function: &'static str,
    },
    /// The driver has no device.
    #[error(
        "the driver {path} has no device; look at CUDA_VISIBLE_DEVICES, or set LARDER_CUDA_DRIVER=stand-in"
    )]
    NoDevice {
        /// The library's path or name.
        path: PathBuf,
    },
    /// cudarc, or the program itself, already uses another driver.
    #[error(
        "cudarc uses another driver, not {path}; load the driver before the first use of cudarc, and link the program \
         with no other"
    )]
    OtherDriver {
        /// The requested driver.
        path: PathBuf,
    },
    /// The process already has a driver of the other kind.
    #[error(
        "the process uses the driver {loaded} already, and has only one; ask for that, or for auto"
    )]
    Contradiction {
        /// The path of that driver.
        loaded: PathBuf,
    },
    /// Neither the real driver nor the stand-in could be loaded.
    #[error("{real}; and {stand_in}")]
    Neither {
        /// The real driver's error.
        real: Box<Self>,
        /// The stand-in's error.
        stand_in: Box<Self>,
    },
    /// The driver refused a call that starts the driver or a context.
    #[error("the driver or a context did not start: {0}")]
    Call(#[from] DriverError),
}

/// Prints the text of `Display`, since a `main` that returns an error prints the error with `Debug`.
impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The paths that were tried.
struct Looked<'a>(&'a [PathBuf]);

impl fmt::Display for Looked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut paths = self.0.iter();
        paths.try_for_each(|path| write!(f, " {}", path.display()))
    }
}

/// The names that were tried, with the system's message for each.
struct Tried<'a>(&'a [(String, String)]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tried = self.0.iter();
        tried.try_for_each(|(name, reason)| write!(f, "; {name}: {reason}"))
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
    fn after_a_fatal_code_the_advice_is_to_start_anew_and_after_no_other() {
        let call = |code| DriverError::Call {
            function: "cuCtxSynchronize",
            code,
        };
        for code in Code::all() {
            let text = call(code).to_string();
            assert_eq!(text.contains("must start anew"), code.is_fatal(), "{text}");
            assert_eq!(call(code).is_fatal(), code.is_fatal());
        }
        let fatal = Code::all()
            .filter(|code| code.is_fatal())
            .map(|code| code.0);
        let expected = [
            214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911,
        ];
        assert!(fatal.eq(expected));
        assert!(!DriverError::Budget.is_fatal());
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
