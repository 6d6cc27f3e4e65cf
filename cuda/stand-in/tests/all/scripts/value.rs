//! The values of a script's words.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{AccessDesc, AllocFlags, AllocationProp, Location, PoolProps};

pub(super) struct Values(pub(super) BTreeMap<String, u64>);

/// Leaks a value. Returns its address.
fn forever<T>(value: T) -> u64 {
    ptr::from_mut(Box::leak(Box::new(value))).expose_provenance() as u64
}

impl Values {
    /// Returns the value of a word.
    pub(super) fn of(&self, word: &str) -> u64 {
        if word.starts_with('>') {
            return forever([0_u64; 16]);
        }
        if let Some(list) = word.strip_prefix('[') {
            let list = list.trim_end_matches(']').split(',');
            let places: Vec<u64> = list.map(|word| forever(self.of(word))).collect();
            return places.leak().as_ptr().expose_provenance() as u64;
        }
        if let Some(list) = word.strip_prefix('{') {
            let list = list.trim_end_matches('}').split(',');
            let words: Vec<u64> = list.map(|word| self.of(word)).collect();
            return words.leak().as_ptr().expose_provenance() as u64;
        }
        if let Some(text) = word.strip_prefix('"') {
            let text = CString::new(text.trim_end_matches('"')).expect("a text");
            return text.into_raw().expose_provenance() as u64;
        }
        if let Some(at) = word.strip_prefix('*') {
            // SAFETY: a section names memory that the driver wrote a word to.
            return unsafe { self.place(at).cast::<u64>().read_unaligned() };
        }
        match word.split_once(':') {
            Some((kind, of)) => self.structure(kind, of),
            None => self.sum(word),
        }
    }

    fn sum(&self, word: &str) -> u64 {
        let mut rest = word;
        let mut sum = 0_u64;
        loop {
            let sign = rest.strip_prefix('-').is_some();
            rest = rest.trim_start_matches(['+', '-']);
            let end = rest.find(['+', '-']).unwrap_or(rest.len());
            let term = self.term(&rest[..end]);
            sum = if sign {
                sum.wrapping_sub(term)
            } else {
                sum.wrapping_add(term)
            };
            rest = &rest[end..];
            if rest.is_empty() {
                return sum;
            }
        }
    }

    fn term(&self, word: &str) -> u64 {
        if let Some(value) = self.0.get(word) {
            return *value;
        }
        if let Some(number) = word.strip_suffix('f') {
            return number
                .parse::<f32>()
                .map(|number| number.to_bits().into())
                .expect("a number");
        }
        let shift = match word.chars().last() {
            Some('K') => 10,
            Some('M') => 20,
            Some('G') => 30,
            _ => 0,
        };
        let digits = word.trim_end_matches(['K', 'M', 'G']);
        let number = digits.parse::<u64>();
        number.unwrap_or_else(|_| panic!("{word} is no name and no number")) << shift
    }

    fn location(&self, of: &str) -> Location {
        match of {
            "host" => Location {
                kind: c::MEM_LOCATION_HOST,
                id: 0,
            },
            device => Location {
                kind: c::MEM_LOCATION_DEVICE,
                id: self.sum(device) as i32,
            },
        }
    }

    fn structure(&self, kind: &str, of: &str) -> u64 {
        let (device, more) = of.split_once(':').unwrap_or((of, "0"));
        let (location, more) = (self.location(device), self.sum(more));
        match kind {
            "prop" => forever(AllocationProp {
                kind: c::MEM_ALLOCATION_TYPE_PINNED,
                handle_types: more as u32,
                location,
                win32_meta_data: ptr::null_mut(),
                flags: AllocFlags {
                    rdma_capable: more as u8,
                    ..AllocFlags::default()
                },
            }),
            "right" => forever(AccessDesc {
                location,
                flags: more as u32,
            }),
            "place" => forever(location),
            "where" => u64::from(location.kind) | u64::from(location.id as u32) << 32,
            "pool" => forever(PoolProps {
                kind: c::MEM_ALLOCATION_TYPE_PINNED,
                handle_types: 0,
                location,
                win32_security_attributes: ptr::null_mut(),
                max_bytes: more as usize,
                usage: 0,
                reserved: [0; 54],
            }),
            _ => panic!("no structure {kind}"),
        }
    }

    /// Returns the value of a word as a host address.
    pub(super) fn place(&self, word: &str) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.sum(word) as usize)
    }

    /// Gives the value that a call wrote this name.
    pub(super) fn learn(&mut self, name: &str, at: u64) {
        let place: *const u64 = ptr::with_exposed_provenance(at as usize);
        // SAFETY: `of` allocated the place for this call.
        let value = unsafe { place.read() };
        self.0.insert(name.to_owned(), value);
    }

    /// Names zeroed memory of the program's own, at a page.
    pub(super) fn keep(&mut self, name: &str, bytes: u64) {
        const PAGE: usize = 4096;
        let memory = vec![0_u8; bytes as usize + PAGE].leak();
        let start = memory.as_mut_ptr().expose_provenance();
        self.0
            .insert(name.to_owned(), start.next_multiple_of(PAGE) as u64);
    }
}
