//! Modules, kernels, launches.

use larder_cuda_abi::{Code, StreamHandle};

use crate::{
    api::{
        context, copy, memory,
        module::{self, Shape},
        stream,
    },
    child,
    gpu::portable,
    hold::Hold,
    own::{Device, Kernels, Stream},
    refused::refusals,
};

refusals! {
    /// Rule: cuModuleGetFunction returns CUDA_ERROR_NOT_FOUND for a name that is not in the module (source: CUDA Driver
    /// API, Module Management, cuModuleGetFunction).
    fn a_kernel_that_is_not_there_is_not_found(kernels = Kernels::load()) {
        module::function(kernels.module, c"fill"),
        module::function(kernels.module, c"fill_u32_param_0"),
        module::function(kernels.module, c"fill_u32_and_more")
    } => NOT_FOUND;

    /// Rule: text that is not a module is refused (source: CUDA Driver API, Module Management, cuModuleLoadData, list
    /// of errors).
    fn what_is_no_module_is_refused() {
        module::load(c"this is no module")
    } => INVALID_IMAGE
        | INVALID_PTX | INVALID_SOURCE | INVALID_VALUE | NO_BINARY_FOR_GPU;

    /// Rule: a grid has at most 65535 blocks in y and z (source: CUDA Programming Guide, Technical Specifications).
    fn too_many_blocks_are_refused(kernels = Kernels::load(), memory = Device::filled(1024, 0)) {
        kernels.try_fill(memory.at, [1, 65_536, 1], [32, 1, 1]), kernels.try_fill(memory.at, [1, 1, 65_536], [32, 1, 1])
    } => INVALID_VALUE;

    /// Rule: each dimension of the grid and of the block must be at least one; otherwise the call returns
    /// CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API, Execution Control, cuLaunchKernel, list of errors).
    fn an_empty_grid_is_refused(kernels = Kernels::load(), memory = Device::filled(1024, 0)) {
        kernels.try_fill(memory.at, [0, 1, 1], [128, 1, 1]), kernels.try_fill(memory.at, [2, 1, 1], [0, 1, 1]),
        kernels.try_fill(memory.at, [2, 0, 1], [128, 1, 1]), kernels.try_fill(memory.at, [2, 1, 1], [128, 0, 1]),
        kernels.try_fill(memory.at, [2, 1, 0], [128, 1, 1]), kernels.try_fill(memory.at, [2, 1, 1], [128, 1, 0])
    } => INVALID_VALUE, leaving memory.read(), [0; 1024];

    /// Rule: a block has no more threads than the device allows, in each dimension and in total (source: CUDA Driver
    /// API, Execution Control, cuLaunchKernel; CUDA Programming Guide, Technical Specifications: 1024, 1024, 64, and
    /// 1024 in total).
    fn too_many_threads_are_refused(kernels = Kernels::load(), memory = Device::filled(1024, 0)) {
        kernels.try_fill(memory.at, [1; 3], [1025, 1, 1]), kernels.try_fill(memory.at, [1; 3], [1, 1025, 1]),
        kernels.try_fill(memory.at, [1; 3], [1, 1, 65]), kernels.try_fill(memory.at, [1; 3], [64, 32, 1])
    } => INVALID_VALUE;

    /// Rule: parameters must be passed in exactly one of the two ways; otherwise the call returns
    /// CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API, Execution Control, cuLaunchKernel: "specifying both
    /// kernelParams and extra").
    fn parameters_are_given_in_one_way(kernels = Kernels::load()) {
        module::launch_packed(kernels.fill, 1, StreamHandle::NULL, &[0; 16], &[0; 3])
    } => INVALID_VALUE;
}

/// Rule: a module can be loaded from PTX text, and its kernels are found by name (source: CUDA Driver API, Module
/// Management, cuModuleLoadData, cuModuleGetFunction).
#[test]
fn kernels_are_found_by_name() {
    let _gpu = portable();
    let kernels = Kernels::load();
    assert_eq!(
        module::function(kernels.module, c"fill_u32"),
        Ok(kernels.fill)
    );
    assert_ne!(kernels.fill, kernels.add);
}

/// Rule: a kernel runs once for each thread of its grid (source: CUDA Driver API, Execution Control, cuLaunchKernel).
#[test]
fn a_kernel_runs_over_its_grid() {
    let _gpu = portable();
    let (kernels, stream) = (Kernels::load(), Stream::blocking());
    let memory = Device::filled(4096, 0);
    let shape = Shape {
        grid: [5, 1, 1],
        block: [100, 1, 1],
    };
    let parameters = [memory.at, 1024, 7];
    module::launch(kernels.fill, shape, stream.0, &parameters).expect("a launch");
    stream.finish();
    let words = memory.words();
    assert_eq!(words[..500], [7; 500]);
    assert_eq!(words[500..], [0; 524]);
    assert_eq!(kernels.try_fill(memory.at, [1; 3], [1024, 1, 1]), Ok(()));
    context::synchronize().expect("work that ends well");
}

/// Rule: parameters are copied at the launch, before it returns (source: CUDA Driver API, Execution Control,
/// cuLaunchKernel).
#[test]
fn parameters_are_copied_at_the_launch() {
    let _gpu = portable();
    let (kernels, stream) = (Kernels::load(), Stream::blocking());
    let memory = Device::filled(1024, 0);
    let hold = Hold::of(stream.0);
    // The parameters are overwritten as soon as the launch has returned.
    kernels.fill(memory.at, 256, 42, stream.0);
    hold.end(stream.0);
    assert_eq!(memory.words(), [42; 256]);
}

/// Rule: kernels and synchronous copies keep their order in the default stream (source: CUDA Driver API, Stream
/// synchronization behavior).
#[test]
fn a_copy_behind_a_kernel_sees_its_work() {
    let gpu = portable();
    let kernels = Kernels::load();
    gpu.defer(71);
    let memory = Device::new(1024);
    for round in 0..4_u32 {
        copy::to_device(memory.at, &[1; 1024]).expect("a copy");
        kernels.fill(memory.at, 256, round, StreamHandle::NULL);
        assert_eq!(memory.words(), [round; 256]);
    }
}

/// Rule: the same kernel may be queued many times, each launch with its own parameters (source: CUDA Driver API,
/// Execution Control, cuLaunchKernel).
#[test]
fn launches_have_parameters_of_their_own() {
    let gpu = portable();
    let (kernels, stream) = (Kernels::load(), Stream::non_blocking());
    gpu.defer(72);
    let memory = Device::filled(4096, 0);
    for part in 0..16_u32 {
        kernels.fill(memory.plus(u64::from(part) * 256), 64, part, stream.0);
    }
    stream.finish();
    let expected: Vec<u32> = (0..1024).map(|word| word / 64).collect();
    assert_eq!(memory.words(), expected);
}

/// Rule: a kernel that accesses memory which does not exist leaves CUDA_ERROR_ILLEGAL_ADDRESS in the context: every
/// later call returns it (source: CUDA Driver API, Data types, CUresult: "leaves the process in an inconsistent state
/// and any further CUDA work will return the same error").
#[test]
fn an_illegal_address_spoils_the_context() {
    child::portable(|_| {
        let (kernels, stream) = (Kernels::load(), Stream::blocking());
        let other = Stream::non_blocking();
        kernels.fill(0x1000, 16, 1, stream.0);
        let spoilt = Err(Code::ILLEGAL_ADDRESS);
        assert_eq!(stream::synchronize(stream.0), spoilt);
        assert_eq!(context::synchronize(), spoilt);
        assert_eq!(stream::query(other.0), spoilt);
        assert_eq!(memory::alloc(256), Err(Code::ILLEGAL_ADDRESS));
        assert_eq!(copy::to_host(&mut [0; 16], 0x1000), spoilt);
    });
}

/// Rule: a fault may be reported by the next synchronisation or by an earlier call, not only by the call that caused it
/// (source: CUDA Driver API: functions "may also return error codes from previous, asynchronous launches").
#[test]
fn a_fault_shows_at_the_next_synchronization() {
    child::portable(|_| {
        let (kernels, stream) = (Kernels::load(), Stream::blocking());
        let event = crate::own::Event::new();
        let hold = Hold::of(stream.0);
        kernels.fill(0x1000, 16, 1, stream.0);
        event.record(stream.0);
        hold.release();
        let answer = stream::synchronize_event(event.0);
        assert_eq!(answer, Err(Code::ILLEGAL_ADDRESS));
    });
}

/// Rule: a cooperative launch may have no more blocks than can be resident at once; otherwise it returns
/// CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE (source: CUDA Driver API, Execution Control, cuLaunchCooperativeKernel; Data
/// types, CUresult).
#[test]
fn a_cooperative_launch_fits_the_device() {
    let _gpu = portable();
    let (kernels, stream) = (Kernels::load(), Stream::blocking());
    let memory = Device::filled(1024, 0);
    let parameters = [memory.at, 256, 3];
    let launch = |shape| module::launch_cooperative(kernels.fill, shape, stream.0, &parameters);
    assert_eq!(launch(Shape::over(256)), Ok(()));
    stream.finish();
    assert_eq!(memory.words(), [3; 256]);
    let huge = Shape {
        grid: [1 << 24, 1, 1],
        block: [1024, 1, 1],
    };
    assert_eq!(launch(huge), Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE));
}

/// Rule: a kernel's maximum number of threads per block is at most the device's maximum (source: CUDA Driver API,
/// Execution Control, cuFuncGetAttribute, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK).
#[test]
fn a_kernel_knows_its_largest_block() {
    let _gpu = portable();
    let kernels = Kernels::load();
    let threads = module::function_attribute(kernels.fill, 0).expect("a number");
    assert!((32..=1024).contains(&threads), "{threads}");
    let unknown = module::function_attribute(kernels.fill, 9999);
    assert_eq!(unknown, Err(Code::INVALID_VALUE));
}

/// Rule: a module's variables are found by name, with their size and initial values; for another name the call returns
/// CUDA_ERROR_NOT_FOUND (source: CUDA Driver API, Module Management, cuModuleGetGlobal).
#[test]
fn variables_are_found_by_name() {
    const TABLE: &std::ffi::CStr = c"
.version 7.0
.target sm_50
.address_size 64

.visible .global .align 4 .u32 table[4] = {1, 2, 3, 4};
";
    let _gpu = portable();
    let loaded = module::load(TABLE).expect("a module");
    let found = module::global(loaded, c"table");
    let words = found.map(|(at, bytes)| (bytes, crate::own::words(at, bytes)));
    let unknown = module::global(loaded, c"tables");
    module::unload(loaded).expect("a module");
    assert_eq!(words, Ok((16, vec![1, 2, 3, 4])));
    assert_eq!(unknown, Err(Code::NOT_FOUND));
}

/// Rule: parameters may be packed into one buffer, each at its alignment (source: CUDA Driver API, Execution Control,
/// cuLaunchKernel, `extra`).
#[test]
fn parameters_may_be_packed_into_a_buffer() {
    let _gpu = portable();
    let (kernels, stream) = (Kernels::load(), Stream::blocking());
    let memory = Device::filled(256, 0);
    let mut packed = memory.at.to_ne_bytes().to_vec();
    packed.extend(64_u32.to_ne_bytes());
    packed.extend(8_u32.to_ne_bytes());
    module::launch_packed(kernels.fill, 64, stream.0, &packed, &[]).expect("a launch");
    packed.fill(0xFF);
    stream.finish();
    assert_eq!(memory.words(), [8; 64]);
}

/// Rule: cuLaunchKernelEx launches a kernel as its configuration says, on the stream in the configuration (source: CUDA
/// Driver API, Execution Control, cuLaunchKernelEx).
#[test]
fn a_launch_is_what_its_configuration_says() {
    let _gpu = portable();
    let (kernels, stream) = (Kernels::load(), Stream::blocking());
    let memory = Device::filled(1024, 0);
    let parameters = [memory.at, 256, 9];
    let launched = module::launch_ex(
        kernels.fill,
        Shape::over(256),
        stream.0,
        &parameters,
        &mut [],
    );
    assert_eq!(launched, Ok(()));
    stream.finish();
    assert_eq!(memory.words(), [9; 256]);
}
