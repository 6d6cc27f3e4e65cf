//! Objects by handle. A handle is a number that nothing else has and no object gets again, so a
//! destroyed object's handle is known for what it is.

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
