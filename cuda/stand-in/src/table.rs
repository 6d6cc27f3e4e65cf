//! Objects by number. A number is one that nothing else has and no object gets again, so a destroyed
//! object's number is known for what it is. It is the object's handle too, but for streams and events:
//! their handles are given again, as the driver's are ([`Names`]).

use std::collections::BTreeMap;

use larder_cuda_abi::Code;

/// What a handle's number is made of: it lies above the numbers with a meaning of their own and is
/// no address.
const STEP: usize = 16;

/// Makes handles; one for all kinds of objects.
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

/// Handles of one kind that are given again: the newest object gets the handle that became free last. So
/// a program that keeps the handle of a destroyed object finds another one behind it.
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

    /// Gives the object of this number a handle.
    pub(crate) fn name(&mut self, number: usize) -> usize {
        let handle = self.vacant.pop().unwrap_or(number);
        self.numbers.insert(handle, number);
        self.handles.insert(number, handle);
        handle
    }

    /// The object that a handle names now.
    pub(crate) fn number(&self, handle: usize) -> Result<usize, Code> {
        let number = self.numbers.get(&handle).copied();
        number.ok_or(Code::INVALID_HANDLE)
    }

    /// Takes the handle from an object that has one; the next object gets it.
    pub(crate) fn forget(&mut self, number: usize) {
        if let Some(handle) = self.handles.remove(&number) {
            self.numbers.remove(&handle);
            self.vacant.push(handle);
        }
    }
}

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    objects: BTreeMap<usize, T>,
    /// What CUDA answers to a handle of this kind that names nothing.
    refusal: Code,
}

impl<T> Table<T> {
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

    /// The handles of the objects of which `which` is true.
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
