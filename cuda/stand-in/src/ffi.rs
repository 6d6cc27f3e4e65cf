//! Arguments of the exported functions. A pointer from C becomes one of these types, whose methods
//! check for null; only they read and write through it.
//!
//! FFI1 where an exported function expects memory, its caller passes null or memory that is valid
//! for this use during the call, as the documentation of that function says.
//!
//! FFI2 a function that is passed to an exported one may be called as the documentation says: a
//! host function with its data, once for each run, from any thread; a kernel's body with a call
//! that lives until the body returns.

use core::ffi::{CStr, c_char, c_void};

use larder_cuda_abi::Code;

/// The caller's place for a result.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Refuses null; called before the function does anything.
    pub(crate) fn check(&self) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }

    pub(crate) fn give(&self, value: T) -> Result<(), Code> {
        self.check()?;
        self.give_if_asked(value);
        Ok(())
    }

    /// Writes the result, or nothing if the caller passed null.
    pub(crate) fn give_if_asked(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so by FFI1 valid for a write.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Returns the place of the element `index` of an array.
    pub(crate) fn at(&self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// Returns the same place for a value of another type: bytes, or the type that another argument
    /// of the call names.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// Reads the value at the place, for an argument that is both input and output.
    pub(crate) fn value(&self) -> Result<T, Code> {
        In(self.0.cast_const()).get()
    }
}

impl In<c_void> {
    /// Returns the address of device memory that the pointer stands for.
    pub(crate) fn addr(&self) -> u64 {
        self.0.addr() as u64
    }

    /// Casts the pointer to point to a `T`, the type that another argument of the call names.
    pub(crate) fn cast<T>(&self) -> In<T> {
        In(self.0.cast())
    }
}

impl Out<u8> {
    /// Writes bytes one after the other, or nothing if the caller passed null.
    pub(crate) fn give_all(&self, bytes: impl Iterator<Item = u8>) {
        for (index, byte) in bytes.enumerate() {
            self.at(index).give_if_asked(byte);
        }
    }
}

/// A value or an array from the caller.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(&self) -> Result<T, Code> {
        self.at(0)
    }

    pub(crate) fn at(&self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let place = self.0.wrapping_add(index);
        // SAFETY: not null, so by FFI1 valid for reads of the number of elements that another
        // argument gives.
        Ok(unsafe { place.read_unaligned() })
    }

    pub(crate) fn slice(&self, count: usize) -> Result<Vec<T>, Code> {
        (0..count).map(|index| self.at(index)).collect()
    }
}

impl In<*const c_void> {
    /// Reads `count` bytes that the element `index` points at.
    pub(crate) fn bytes_behind(&self, index: usize, count: usize) -> Result<Vec<u8>, Code> {
        In(self.at(index)?.cast()).slice(count)
    }
}

/// A string from the caller.
#[repr(transparent)]
pub(crate) struct CallerText(*const c_char);

impl CallerText {
    /// Returns the string's bytes, without the terminating NUL.
    pub(crate) fn bytes(&self) -> Result<&[u8], Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so by FFI1 a NUL-terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_bytes())
    }

    pub(crate) fn get(&self) -> Result<String, Code> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }
}

/// Implemented by the argument types that stand for the C type `C`.
#[allow(
    dead_code,
    reason = "Rust 1.88 does not see the use in the constants of `prototypes`"
)]
pub(crate) trait Takes<C> {}

impl<C> Takes<C> for C {}
impl<C, T: Takes<C>> Takes<*mut C> for Out<T> {}
impl<C, T: Takes<C>> Takes<*const C> for In<T> {}
/// The function only reads this memory.
impl<C, T: Takes<C>> Takes<*mut C> for In<T> {}
impl<C> Takes<*mut C> for *const C {}
/// The function looks up this address.
impl<C> Takes<*mut C> for usize {}
impl<C> Takes<*const C> for usize {}
impl Takes<*const c_char> for CallerText {}
/// The image of a module. Only text is accepted.
impl Takes<*const c_void> for CallerText {}
