//! Objects by number. Numbers are unique across kinds and never reused, so the number of a
//! destroyed object is recognized. The number is also the object's handle, except for streams and
//! events, whose handles are reused, as in CUDA's driver ([`Names`]).

use std::collections::BTreeMap;

use larder_cuda_abi::Code;

/// Distance between numbers. The first number lies above the handles with a special meaning, and no
/// number is an address.
const STEP: usize = 16;

/// Creates the handles of all kinds of objects.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    last: usize,
}

impl Handles {
    pub(crate) fn next(&mut self) -> usize {
        self.last += 1;
        self.last * STEP
    }
}

/// Reused handles of one kind. The newest object gets the handle that became free last, so a
/// program that still uses the handle of a destroyed object may reach another object.
#[derive(Debug)]
pub(crate) struct Names {
    numbers: BTreeMap<usize, usize>,
    handles: BTreeMap<usize, usize>,
    vacant: Vec<usize>,
}

impl Names {
    pub(crate) const fn new() -> Self {
        Self {
            numbers: BTreeMap::new(),
            handles: BTreeMap::new(),
            vacant: Vec::new(),
        }
    }

    /// Gives the object of this number a handle. Returns the handle.
    pub(crate) fn name(&mut self, number: usize) -> usize {
        let handle = self.vacant.pop().unwrap_or(number);
        self.numbers.insert(handle, number);
        self.handles.insert(number, handle);
        handle
    }

    /// Returns the object that a handle names now.
    pub(crate) fn number(&self, handle: usize) -> Result<usize, Code> {
        let number = self.numbers.get(&handle).copied();
        number.ok_or(Code::INVALID_HANDLE)
    }

    /// Makes the handle of an object, if it has one, available for the next object.
    pub(crate) fn forget(&mut self, number: usize) {
        if let Some(handle) = self.handles.remove(&number) {
            self.numbers.remove(&handle);
            self.vacant.push(handle);
        }
    }
}

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct ObjectTable<T> {
    objects: BTreeMap<usize, T>,
    /// CUDA's error for an unknown handle of this kind.
    refusal: Code,
}

impl<T> ObjectTable<T> {
    pub(crate) fn new(refusal: Code) -> Self {
        Self {
            objects: BTreeMap::new(),
            refusal,
        }
    }

    pub(crate) fn insert(&mut self, handle: usize, object: T) {
        self.objects.insert(handle, object);
    }

    pub(crate) fn remove(&mut self, handle: usize) -> Result<T, Code> {
        self.objects.remove(&handle).ok_or(self.refusal)
    }

    pub(crate) fn get(&self, handle: usize) -> Result<&T, Code> {
        self.objects.get(&handle).ok_or(self.refusal)
    }

    pub(crate) fn get_mut(&mut self, handle: usize) -> Result<&mut T, Code> {
        self.objects.get_mut(&handle).ok_or(self.refusal)
    }

    pub(crate) fn each(&mut self, act: impl FnMut(&mut T)) {
        self.objects.values_mut().for_each(act);
    }

    /// Returns the handles of the objects for which `which` is true.
    pub(crate) fn all(&self, which: impl Fn(&T) -> bool) -> Vec<usize> {
        let chosen = self.iter().filter(|(_, object)| which(object));
        chosen.map(|(handle, _)| handle).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.objects
            .iter()
            .map(|(handle, object)| (*handle, object))
    }
}
