//! Four kernels on 32-bit words: as PTX for a GPU, as host functions for the stand-in, and as the reference on the
//! host's copies.

use std::ffi::{CStr, CString, c_void};

use cudarc::driver::{CudaStream, result, sys};
use larder_cuda::Context;
use larder_cuda::driver::{HostLaunch, StandIn};
use larder_cuda_abi::stand_in::KernelCall;

/// Threads in a thread block.
const THREADS: u32 = 256;

const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../../words.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a zero byte within"),
    };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kernel {
    Fill,
    Add,
    Scale,
    Twist,
}

impl Kernel {
    const ALL: [Self; 4] = [Self::Fill, Self::Add, Self::Scale, Self::Twist];

    const fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill_words",
            Self::Add => "add_words",
            Self::Scale => "scale_words",
            Self::Twist => "twist_words",
        }
    }

    /// Computes the kernel's result on the host. Words past the end of a source are 0.
    pub(crate) fn on_host(self, left: &[u8], right: &[u8], out: &mut [u8], value: u32) {
        fn of(bytes: &[u8], index: usize) -> u32 {
            let bytes = bytes.get(index * 4..index * 4 + 4);
            bytes.map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
        }
        // Compiled as one loop for each kernel, without a call for each word.
        fn write(out: &mut [u8], word: impl Fn(usize) -> u32) {
            for (index, place) in out.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&word(index).to_le_bytes());
            }
        }
        match self {
            Self::Fill => write(out, |index| value.wrapping_add(index as u32)),
            Self::Add => write(out, |index| of(left, index).wrapping_add(of(right, index))),
            Self::Scale => write(out, |index| of(left, index).wrapping_mul(value)),
            Self::Twist => write(out, |index| {
                (of(left, index) ^ value).wrapping_add(index as u32)
            }),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Launch {
    pub(crate) out: u64,
    /// The addresses of the sources. A kernel with fewer sources ignores the others.
    pub(crate) left: u64,
    pub(crate) right: u64,
    pub(crate) words: u32,
    pub(crate) value: u32,
}

pub(crate) struct Kernels {
    context: Context,
    module: sys::CUmodule,
    functions: [sys::CUfunction; 4],
}

// SAFETY: any thread may use the handles, and the module does not change.
unsafe impl Send for Kernels {}

impl Kernels {
    pub(crate) fn load(context: &Context) -> Result<Self, result::DriverError> {
        context.cudarc().bind_to_thread()?;
        // SAFETY: the PTX is a NUL-terminated string.
        let module = unsafe { result::module::load_data(PTX.as_ptr().cast()) }?;
        let mut functions = [std::ptr::null_mut(); 4];
        for (kernel, function) in Kernel::ALL.into_iter().zip(&mut functions) {
            let name = CString::new(kernel.name()).unwrap();
            // SAFETY: the module was loaded just now.
            *function = unsafe { result::module::get_function(module, name) }?;
        }
        Ok(Self {
            context: context.clone(),
            module,
            functions,
        })
    }

    pub(crate) fn launch(
        &self,
        stream: &CudaStream,
        kernel: Kernel,
        launch: Launch,
    ) -> Result<(), result::DriverError> {
        let mut launch = launch;
        let (out, left, right) = (
            (&raw mut launch.out).cast::<c_void>(),
            (&raw mut launch.left).cast(),
            (&raw mut launch.right).cast(),
        );
        let (words, value) = (
            (&raw mut launch.words).cast(),
            (&raw mut launch.value).cast(),
        );
        let parameters: &mut [*mut c_void] = match kernel {
            Kernel::Fill | Kernel::Twist => &mut [out, words, value],
            Kernel::Add => &mut [out, left, right, words],
            Kernel::Scale => &mut [out, left, words, value],
        };
        let grid = (launch.words.div_ceil(THREADS).max(1), 1, 1);
        let function = self.functions[kernel as usize];
        // SAFETY: the parameters are those in the PTX, and outlive the call, which copies them; the program holds the
        // blocks and orders their uses.
        unsafe {
            result::launch_kernel(
                function,
                grid,
                (THREADS, 1, 1),
                0,
                stream.cu_stream(),
                parameters,
            )
        }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.context.cudarc().bind_to_thread();
        // SAFETY: the module was loaded once, and nothing launches its kernels any more.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// Registers the kernels' bodies with the stand-in. NVIDIA's driver compiles the PTX instead.
pub(crate) fn register(control: &StandIn) {
    for (kernel, body) in [
        (Kernel::Fill, fill as larder_cuda_abi::stand_in::KernelBody),
        (Kernel::Add, add),
        (Kernel::Scale, scale),
        (Kernel::Twist, twist),
    ] {
        // SAFETY: every kernel with this name is the one in the PTX, whose parameters the body reads; the body makes no
        // driver calls.
        unsafe { control.register_kernel(kernel.name(), body) }.unwrap();
    }
}

/// # Safety
/// The call is a launch of `fill_words` by the stand-in.
unsafe extern "C" fn fill(call: *const KernelCall) {
    // SAFETY: the call is a launch of this kernel, as the caller promises; the kernel has these parameters.
    unsafe { body(call, Kernel::Fill, 0) }
}

/// # Safety
/// The call is a launch of `add_words` by the stand-in.
unsafe extern "C" fn add(call: *const KernelCall) {
    // SAFETY: the call is a launch of this kernel, as the caller promises; the kernel has these parameters.
    unsafe { body(call, Kernel::Add, 2) }
}

/// # Safety
/// The call is a launch of `scale_words` by the stand-in.
unsafe extern "C" fn scale(call: *const KernelCall) {
    // SAFETY: the call is a launch of this kernel, as the caller promises; the kernel has these parameters.
    unsafe { body(call, Kernel::Scale, 1) }
}

/// # Safety
/// The call is a launch of `twist_words` by the stand-in.
unsafe extern "C" fn twist(call: *const KernelCall) {
    // SAFETY: the call is a launch of this kernel, as the caller promises; the kernel has these parameters.
    unsafe { body(call, Kernel::Twist, 0) }
}

/// Does the work of the whole grid.
///
/// # Safety
/// The call is a launch of `kernel` by the stand-in. Its parameters are the address of the result, `sources` addresses
/// of sources, the number of words, and, unless it is `Add`, a value.
unsafe fn body(call: *const KernelCall, kernel: Kernel, sources: usize) {
    // SAFETY: the call is a launch of this kernel with these parameters, as the caller promises. The sources are copied
    // before the result is written; nothing else uses the memory, because the program orders its uses.
    let launch = unsafe { HostLaunch::of(call) };
    let bytes = 4 * launch.count(1 + sources);
    let value = if kernel == Kernel::Add {
        0
    } else {
        launch.parameter::<u32>(2 + sources)
    };
    let mut read = [Vec::new(), Vec::new()];
    // `Twist` works in place, so its result is also its source.
    let in_place = usize::from(kernel == Kernel::Twist);
    for (index, read) in read.iter_mut().enumerate().take(sources + in_place) {
        let Some(source) = launch.read::<u8>(1 + index - in_place, bytes) else {
            return;
        };
        *read = source.to_vec();
    }
    if let Some(out) = launch.write::<u8>(0, bytes) {
        kernel.on_host(&read[0], &read[1], out, value);
    }
}
