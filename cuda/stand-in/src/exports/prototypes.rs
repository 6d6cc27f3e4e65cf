//! Checks that each function in the tables of `larder_cuda_abi` is exported, with its prototype.
#![allow(
    non_camel_case_types,
    reason = "the parameters' names stand for their types"
)]

use core::ffi::{c_char, c_void};

use larder_cuda_abi::{
    AccessDesc, AllocationProp, Code, ContextHandle, DevicePtr, DeviceUuid, EventHandle,
    FunctionHandle, GraphExecHandle, GraphHandle, GraphNodeHandle, HostFunction, LaunchConfig,
    Location, MemoryHandle, ModuleHandle, PoolHandle, PoolProps, SharedMemoryOf, StreamHandle,
    for_each_control_function, for_each_function, stand_in::KernelBody,
};

use super::{
    capture::*, context::*, control::*, copy::*, device::*, event::*, graph::*, host::*, init::*,
    launch::*, lookup::*, managed::*, memory::*, module::*, occupancy::*, pointer::*, pool::*,
    stream::*, vmm::*,
};
use crate::ffi::Takes;

macro_rules! check {
    ($(fn $name:ident($($parameter:ident: $kind:ty),*) since $version:literal;)*) => {
        check! { $(fn $name($($parameter: $kind),*) -> Code;)* }
    };
    ($(fn $name:ident($($parameter:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {
        $(const _: fn() = || {
            fn of<$($parameter: Takes<$kind>),*>(
                _: extern "C" fn($($parameter),*) $(-> $answer)?,
            ) {
            }
            of($name);
        };)*
    };
}

for_each_function!(check);
for_each_control_function!(check);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use larder_cuda_abi::functions::ALL;

    #[test]
    fn the_table_has_what_is_exported() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exports");
        let mut exported = BTreeSet::new();
        for file in fs::read_dir(folder).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let functions = text.split("extern \"C\" fn ").skip(1);
            let names = functions.filter_map(|rest| rest.split('(').next());
            exported.extend(
                names
                    .filter(|name| name.starts_with("cu"))
                    .map(str::to_owned),
            );
        }
        let listed: BTreeSet<String> = ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(listed, exported);
    }
}
