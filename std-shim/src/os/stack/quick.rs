//! The calling thread's stack, walked with cached rules: the tables are read once for each return
//! address. The result is the same as the unwinder's, or there is none.
//!
//! # Invariants
//! * QUICK1 a rule that is followed is that of the code now at its address. Code that was loaded
//!   with the program is never unloaded. For other code the tables are found each time; the rule is
//!   valid if, according to the seal, the tables have the bytes from which it was read.
//! * QUICK2 an entry is one number, and contains its address; a seal covers its rule and address.
//!   So threads, signal handlers and forked children may read and write entries and seals at any
//!   moment.

use core::arch::asm;
use core::ffi::{c_int, c_void};
use core::{ptr, slice};

use larder_core::sync::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::rule::FrameRule;

/// The unwinder's function that finds the table entry of an address of code.
pub(super) type FindEntry = unsafe extern "C" fn(*const c_void, *mut QuickFacts) -> *const u8;

/// The other results of that function.
#[repr(C)]
pub(super) struct QuickFacts {
    text: *const c_void,
    data: *const c_void,
    function: *const c_void,
}

const ENTRY_BITS: u32 = 15;
const ENTRIES: usize = 1 << ENTRY_BITS;
/// Number of bits of a program's addresses.
const ADDRESS_BITS: u32 = 47;

/// The known rules. The upper half of an entry has the upper bits of a return address, the lower
/// half has the rule. The index is the lower bits of the address XOR the upper ones. The array
/// takes memory only once it is used.
static RULES: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// The bit of an entry whose code was loaded with the program and is never unloaded.
const LASTS: u64 = 1 << 31;
/// For other code, a hash of the tables when the rule was read.
static SEALS: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// Does the work of [`walk`](super::walk). Returns `None` if the unwinder must walk.
pub(super) fn walk(inner: usize, frames: &mut [usize], find: FindEntry) -> Option<usize> {
    // The unwinder does the first walk, which binds its calls: binding them would not fit on the
    // stack of a signal handler.
    if !has_looked() {
        return None;
    }
    let (mut place, mut slot, mut rbp): (usize, *const usize, *const usize);
    // Starts at the current address and at the slot below the stack pointer, as if that held a
    // return address.
    // SAFETY: reads registers.
    unsafe {
        asm!(
            "lea {}, [rip]",
            "lea {}, [rsp - 8]",
            "mov {}, rbp",
            out(reg) place,
            out(reg) slot,
            out(reg) rbp,
            options(nomem, nostack, preserves_flags),
        );
    }
    let mut count = 0;
    loop {
        let after_slot = slot.wrapping_add(1);
        if after_slot.addr() > inner {
            *frames.get_mut(count)? = place;
            count += 1;
            if count == frames.len() {
                return Some(count);
            }
        }
        let rule = rule_at(place, find);
        if rule == FrameRule::OUTERMOST {
            return Some(count);
        }
        if rule == FrameRule::NONE {
            return None;
        }
        let from = if rule.is_by_rbp() { rbp } else { after_slot };
        let end = from.wrapping_add(rule.words());
        slot = end.wrapping_sub(1);
        if let Some(words) = rule.saved_rbp_words() {
            // SAFETY: QUICK1: the rule is the code's, so the function saved it there.
            rbp = unsafe { end.wrapping_sub(words).cast::<*const usize>().read() };
        }
        // SAFETY: QUICK1: the rule is the code's, so the return address lies there.
        place = unsafe { slot.read() };
        if place == 0 {
            return Some(count);
        }
    }
}

/// Returns the rule of a return address.
pub(super) fn rule_at(place: usize, find: FindEntry) -> FrameRule {
    let upper = place >> ENTRY_BITS;
    let index = (place ^ upper) % ENTRIES;
    let (Some(entry), Some(seal)) = (RULES.get(index), SEALS.get(index)) else {
        return FrameRule::NONE;
    };
    // Relaxed: an entry is one number that contains its address (QUICK2).
    let known = entry.load(Ordering::Relaxed);
    let rule = FrameRule::from_bits((known & (LASTS - 1)) as u32);
    let is_known = known >> 32 == upper as u64;
    if is_known && known & LASTS != 0 {
        return rule;
    }
    sealed_rule(place, find, entry, seal, is_known.then_some(rule))
}

/// Returns the known rule of an address if the tables are unchanged, otherwise reads the rule from
/// the tables.
#[inline(never)]
fn sealed_rule(
    place: usize,
    find: FindEntry,
    entry: &AtomicU64,
    seal: &AtomicU64,
    known: Option<FrameRule>,
) -> FrameRule {
    let tables = UnwindTables::find(place, find);
    if let (Some(tables), Some(rule)) = (&tables, known)
        // Relaxed: a wrong seal does not match (QUICK2).
        && seal.load(Ordering::Relaxed) == tables.seal(place, rule)
    {
        return rule;
    }
    learn(place, tables.as_ref(), entry, seal)
}

/// Reads the rule from the tables, and caches it.
#[cold]
fn learn(
    place: usize,
    tables: Option<&UnwindTables>,
    entry: &AtomicU64,
    seal: &AtomicU64,
) -> FrameRule {
    let rule = tables.and_then(|tables| tables.rule(place));
    let rule = rule.unwrap_or(FrameRule::NONE);
    let lasts = if is_lasting(place) { LASTS } else { 0 };
    if place >> ADDRESS_BITS == 0 && (lasts != 0 || tables.is_some()) {
        let sealed = tables.map_or(0, |tables| tables.seal(place, rule));
        // Relaxed: a seal covers its rule and address (QUICK2).
        seal.store(sealed, Ordering::Relaxed);
        let upper = (place >> ENTRY_BITS) as u64;
        // Relaxed: an entry is one number that contains its address (QUICK2).
        entry.store(
            upper << 32 | lasts | u64::from(rule.bits()),
            Ordering::Relaxed,
        );
    }
    rule
}

/// The table entries of a return address.
pub(super) struct UnwindTables {
    /// The function's entry, and the shared one.
    entry: &'static [u8],
    common: &'static [u8],
    function: usize,
}

impl UnwindTables {
    pub(super) fn find(place: usize, find: FindEntry) -> Option<Self> {
        let mut found = QuickFacts {
            text: ptr::null(),
            data: ptr::null(),
            function: ptr::null(),
        };
        // The call precedes its return address, which may lie in another function.
        let call = ptr::without_provenance(place - 1);
        // SAFETY: the call accepts any address, and writes to a variable of ours.
        let entry = unsafe { find(call, &raw mut found) };
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry begins with its length and the distance back to the shared entry.
        let distance = unsafe { entry.cast::<i32>().wrapping_add(1).read_unaligned() };
        let common = entry.wrapping_add(4).wrapping_offset(-(distance as isize));
        Some(Self {
            // SAFETY: an entry of code that is on the stack, so the entry stays valid during the
            // call.
            entry: unsafe { bytes_of(entry) }?,
            // SAFETY: the shared entry of the same tables, which stays valid as long.
            common: unsafe { bytes_of(common) }?,
            function: found.function.addr(),
        })
    }

    /// Returns the rule of the address; `None` if the unwinder must step.
    pub(super) fn rule(&self, place: usize) -> Option<FrameRule> {
        FrameRule::of(self.entry, self.common, self.function, place)
    }

    /// Returns a number that no other rule, place or table is likely to have.
    fn seal(&self, place: usize, rule: FrameRule) -> u64 {
        let mix = |seal: u64, part: u64| {
            // After FxHash: the product carries a difference up, the rotation down.
            (seal.rotate_left(23) ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        };
        let first = [place as u64, self.function as u64, u64::from(rule.bits())];
        [self.entry, self.common]
            .iter()
            .fold(first.into_iter().fold(0, mix), |seal, bytes| {
                let (words, rest) = bytes.as_chunks();
                let words = words
                    .iter()
                    .map(|&word| u64::from(u32::from_le_bytes(word)));
                let rest = rest.iter().map(|&byte| u64::from(byte));
                words.chain(rest).fold(seal, mix)
            })
    }
}

/// # Safety
/// `entry` is an entry of the tables, which stays valid while the bytes are used.
unsafe fn bytes_of(entry: *const u8) -> Option<&'static [u8]> {
    // SAFETY: the entry begins with its length.
    let length = unsafe { entry.cast::<u32>().read_unaligned() };
    if length == u32::MAX {
        // Longer than 4 GiB.
        return None;
    }
    // SAFETY: the entry has that many bytes behind its length, and stays valid while they are used.
    Some(unsafe { slice::from_raw_parts(entry, 4 + length as usize) })
}

/// The start and end of ranges of code that is never unloaded; an unused range is empty.
static LASTING: [[AtomicUsize; 2]; 128] = [const { [const { AtomicUsize::new(0) }; 2] }; 128];
/// Progress of the search for these ranges: 0 before the search.
static LOOKED: AtomicU8 = AtomicU8::new(0);
const LOOKS: u8 = 1;
const HAS_LOOKED: u8 = 2;

/// Returns whether the ranges are known. Otherwise searches for them.
pub(super) fn has_looked() -> bool {
    // Acquire: pairs with the release below, so that the ranges are visible.
    if LOOKED.load(Ordering::Acquire) == HAS_LOOKED {
        return true;
    }
    // Relaxed: only one thread continues.
    let looked = LOOKED.compare_exchange(0, LOOKS, Ordering::Relaxed, Ordering::Relaxed);
    if looked.is_ok() {
        let mut looks = Looks {
            // SAFETY: reads a number of the process.
            program: unsafe { libc::getauxval(libc::AT_PHDR) },
            // SAFETY: reads a number of the process.
            loader: unsafe { libc::getauxval(libc::AT_BASE) },
            count: 0,
        };
        // SAFETY: `look` is called with `looks`, which lives until this returns.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut looks).cast()) };
        // Release: a thread that sees it sees the ranges.
        LOOKED.store(HAS_LOOKED, Ordering::Release);
    }
    false
}

/// Returns whether a place is in code that is known to be never unloaded.
fn is_lasting(place: usize) -> bool {
    LASTING.iter().any(|[from, to]| {
        // Relaxed: this thread has seen HAS_LOOKED.
        (from.load(Ordering::Relaxed)..to.load(Ordering::Relaxed)).contains(&place)
    })
}

struct Looks {
    /// Address of the program's headers, and of the loader.
    program: u64,
    loader: u64,
    /// Number of ranges recorded so far.
    count: usize,
}

/// Records the code of a file. Files loaded with the program are never unloaded and come first,
/// with the program itself before all others. The loader is one of these files, so all files up to
/// the loader are never unloaded; in a program without a loader, this is known only of the first
/// file.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, looks: *mut c_void) -> c_int {
    // SAFETY: the loader's own data, for this call.
    let info = unsafe { &*info };
    // SAFETY: the value in `has_looked`, which waits for this call.
    let looks = unsafe { &mut *looks.cast::<Looks>() };
    if looks.count == 0 && info.dlpi_phdr.addr() as u64 != looks.program {
        // Files of a namespace (`dlmopen`), which are unloaded with it.
        return 1;
    }
    let is_last = info.dlpi_addr == looks.loader || looks.loader == 0;
    // SAFETY: the file's headers, with their number.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers {
        if header.p_type == libc::PT_LOAD
            && header.p_flags & libc::PF_X != 0
            && let Some([from, to]) = LASTING.get(looks.count)
        {
            let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
            // Relaxed: published by the release above.
            from.store(start as usize, Ordering::Relaxed);
            // Relaxed: published by the same release.
            to.store(
                start.wrapping_add(header.p_memsz) as usize,
                Ordering::Relaxed,
            );
            looks.count += 1;
        }
    }
    c_int::from(is_last)
}
