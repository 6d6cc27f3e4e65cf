//! Modules, their kernels, and launches. A kernel's body is a function of the host that a test
//! registered under the kernel's name. A registration outlives `larder_stand_in_reset`, because the
//! body is part of the test program, not of the driver.

use std::collections::BTreeMap;
use std::ffi::c_void;

use larder_cuda_abi::stand_in::{KernelBody, KernelCall};
use larder_cuda_abi::{Code, DevicePtr};

use crate::driver::{Session, SimDriver};
use crate::ptx::{Parameter, Ptx};
use crate::queue::{OpId, Work};
use crate::space::{Access, Accessor, BlockKind};
use crate::thread;

/// Maximum alignment of a parameter, in bytes.
pub(crate) const MAX_ALIGN: usize = 128;

/// One loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: usize,
    /// Handles of its kernels by name.
    pub(crate) functions: BTreeMap<String, usize>,
    /// Address and size of its variables by name.
    pub(crate) variables: BTreeMap<String, (u64, u64)>,
}

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) context: usize,
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    /// Attributes set by the program.
    pub(crate) attributes: BTreeMap<u32, i32>,
}

/// Aligned space for parameters, with the layout of a device's parameter memory.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct ParameterBlock([u8; MAX_ALIGN]);

/// Copies of a launch's parameters.
#[derive(Clone, Debug)]
pub(crate) struct LaunchArguments {
    lines: Vec<ParameterBlock>,
    offsets: Vec<usize>,
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchShape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct SimLaunch {
    pub(crate) function: usize,
    pub(crate) name: String,
    pub(crate) body: KernelBody,
    pub(crate) shape: LaunchShape,
    pub(crate) arguments: LaunchArguments,
}

impl Function {
    /// Returns the total size of the parameters in bytes.
    pub(crate) fn parameter_bytes(&self) -> usize {
        self.parameters
            .last()
            .map_or(0, |last| last.offset + last.bytes)
    }
}

impl LaunchArguments {
    /// Copies the bytes of each parameter to its offset.
    pub(crate) fn new(parameters: &[Parameter], values: &[Vec<u8>]) -> Self {
        let bytes = parameters.last().map_or(0, |last| last.offset + last.bytes);
        let mut lines = vec![ParameterBlock([0; MAX_ALIGN]); bytes.div_ceil(MAX_ALIGN)];
        for (parameter, value) in parameters.iter().zip(values) {
            for (index, byte) in value.iter().take(parameter.bytes).enumerate() {
                let at = parameter.offset + index;
                let line = lines.get_mut(at / MAX_ALIGN);
                if let Some(to) = line.and_then(|line| line.0.get_mut(at % MAX_ALIGN)) {
                    *to = *byte;
                }
            }
        }
        let offsets = parameters.iter().map(|at| at.offset).collect();
        Self { lines, offsets }
    }

    fn pointers(&self) -> Vec<*const c_void> {
        let start: *const u8 = self.lines.as_ptr().cast();
        let at = |offset: &usize| start.wrapping_add(*offset).cast();
        self.offsets.iter().map(at).collect()
    }
}

/// The value that [`KernelCall::driver`] points to while a body runs.
struct Running {
    driver: *mut SimDriver,
    user: Accessor,
    refused: Option<Code>,
}

/// Implements [`KernelCall::access`].
unsafe extern "C" fn access(
    call: *const KernelCall,
    at: DevicePtr,
    bytes: u64,
    write: u32,
) -> *mut c_void {
    // SAFETY: a body passes the call that it received, which lives until the body returns. The call
    // holds `do_kernel`'s `Running`, which points to the driver; `do_kernel` uses neither while the
    // body runs.
    let (running, driver) = unsafe {
        let running = &mut *(*call).driver.cast::<Running>();
        let driver = &mut *running.driver;
        (running, driver)
    };
    let act = if write == 0 {
        Access::Read
    } else {
        Access::Write
    };
    match driver.touch(&running.user, at, bytes, act) {
        Ok(host) => host.cast(),
        Err(code) => {
            running.refused.get_or_insert(code);
            std::ptr::null_mut()
        }
    }
}

impl SimDriver {
    /// Loads a module into the current context.
    pub(crate) fn load_module(&mut self, ptx: Ptx) -> Result<usize, Code> {
        let context = self.current()?;
        let device = self.contexts.get(context)?.device;
        let module = self.handles.next();
        let mut variables = BTreeMap::new();
        for variable in ptx.variables {
            let bytes = variable.bytes.max(1) as u64;
            let given = self
                .space
                .alloc_plain(device, Some(context), bytes, BlockKind::Module);
            let at = match given {
                Ok(at) => at,
                Err(code) => {
                    self.free_variables(&variables);
                    return Err(code);
                }
            };
            let mut initial = variable.initial;
            initial.resize(variable.bytes, 0);
            let host = self.space.window.host(at);
            // SAFETY: the memory belongs to the block that was just created, which has this length.
            unsafe { host.copy_from_nonoverlapping(initial.as_ptr(), initial.len()) };
            variables.insert(variable.name, (at, variable.bytes as u64));
        }
        let mut functions = BTreeMap::new();
        for entry in ptx.entries {
            let handle = self.handles.next();
            functions.insert(entry.name.clone(), handle);
            let function = Function {
                context,
                name: entry.name,
                parameters: entry.parameters,
                attributes: BTreeMap::new(),
            };
            self.functions.insert(handle, function);
        }
        let loaded = Module {
            context,
            functions,
            variables,
        };
        self.modules.insert(module, loaded);
        Ok(module)
    }

    fn free_variables(&mut self, variables: &BTreeMap<String, (u64, u64)>) {
        for (at, _) in variables.values() {
            let _ = self.space.free_plain(*at);
        }
    }

    /// Removes a module.
    pub(crate) fn remove_module(&mut self, handle: usize) -> Result<(), Code> {
        let module = self.modules.remove(handle)?;
        for function in module.functions.values() {
            self.functions.remove(*function)?;
        }
        self.free_variables(&module.variables);
        Ok(())
    }

    /// Removes the modules of a context.
    pub(crate) fn remove_modules_of(&mut self, context: usize) -> Result<(), Code> {
        for module in self.modules.all(|module| module.context == context) {
            self.remove_module(module)?;
        }
        Ok(())
    }

    /// Returns whether queued work uses a module.
    fn uses_module(&self, module: &Module) -> bool {
        self.queue.ops.values().any(|op| match &op.work {
            Work::Kernel(launch) => module.functions.values().any(|at| *at == launch.function),
            _ => false,
        })
    }

    /// Runs a kernel's body.
    pub(crate) fn do_kernel(&mut self, op: OpId, launch: &SimLaunch) -> Result<(), Code> {
        let name = &launch.name;
        if self.functions.get(launch.function).is_err() {
            self.findings
                .add(format!("kernel {name} runs after its module was unloaded"));
            return Err(Code::LAUNCH_FAILED);
        }
        let mut user = self.user(op, &format!("kernel {name}"))?;
        user.copies = false;
        let mut running = Running {
            driver: self,
            user,
            refused: None,
        };
        let parameters = launch.arguments.pointers();
        let call = KernelCall {
            grid: launch.shape.grid,
            block: launch.shape.block,
            shared_bytes: launch.shape.shared_bytes,
            parameter_count: parameters.len() as u32,
            parameters: parameters.as_ptr(),
            access,
            driver: (&raw mut running).cast(),
        };
        // Driver calls from a body are refused, since they would wait for this thread.
        let closed = thread::is_closed();
        thread::set_closed(true);
        // SAFETY: by FFI2 the function, registered as the body of kernels with this name, may be
        // called. The call, its parameters and the memory they point to live until it returns.
        unsafe { (launch.body)(&raw const call) };
        thread::set_closed(closed);
        running.refused.map_or(Ok(()), Err)
    }
}

impl Session {
    /// Implements `cuModuleUnload`. Waits for work that uses the module, which CUDA does not
    /// promise.
    pub(crate) fn unload_module(&mut self, handle: usize) -> Result<(), Code> {
        let module = self.modules.get(handle)?;
        let context = module.context;
        self.alive(context)?;
        if self.uses_module(module) {
            self.findings.add(format!(
                "module {handle:#x} is unloaded while queued work uses it"
            ));
            // The context reports a failure of the work.
            let _ = self.sync_context(context);
        }
        self.remove_module(handle)
    }
}
