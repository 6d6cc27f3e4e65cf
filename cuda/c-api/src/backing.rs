//! When pages of a device's memory move. The environment chooses this for all devices; the program
//! chooses it for a device that is not in use yet.

use std::ffi::c_int;

use larder_core::ByteCount;
use larder_core::pages::Backing;

use crate::device;
use crate::job::{PAGE_BYTES, variable};
use crate::outcome::{Refusal, status};

const IN_PLACE: &str = "LARDER_CUDA_IN_PLACE";
const BUDGET: &str = "LARDER_CUDA_BUDGET";

/// Reads the environment's choice, for devices for which the program has not chosen.
pub(crate) fn from_env() -> Result<Backing, Refusal> {
    let in_place = variable(IN_PLACE, "1 for pages that never move, or 0", |text| {
        text.parse().ok().filter(|number| *number <= 1)
    });
    let wanted = "a size of at least 2 MiB, such as 1.5GiB";
    let budget = variable(BUDGET, wanted, |text| {
        let bytes = ByteCount::parse(text)?.0;
        (bytes >= PAGE_BYTES).then_some(bytes)
    });
    let both = || format!("{IN_PLACE} and {BUDGET} are both set: set one of them");
    match (in_place, budget) {
        (Err(words), _) | (_, Err(words)) => Err(Refusal::Start(words)),
        (Ok(Some(1)), Ok(Some(_))) => Err(Refusal::Start(both())),
        (Ok(Some(1)), Ok(None)) => Ok(Backing::InPlace),
        (Ok(_), Ok(Some(bytes))) => Ok(Backing::Budget(bytes)),
        (Ok(_), Ok(None)) => Ok(Backing::Billed),
    }
}

/// Makes pages of a device never move.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_set_in_place(ordinal: c_int) -> c_int {
    status(|| device::choose(ordinal, Backing::InPlace))
}

/// Sets a budget for a device's memory.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_set_budget(ordinal: c_int, bytes: u64) -> c_int {
    status(|| match bytes {
        0..PAGE_BYTES => Err(Refusal::Budget(bytes)),
        _ => device::choose(ordinal, Backing::Budget(bytes)),
    })
}
