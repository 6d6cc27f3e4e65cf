//! The header compared with the library: names, types, C and C++.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::common::{
    compiled, compiled_shared, compiled_with, library, on_stand_in, package, words,
};

/// A function's parameter types, then its return type.
type Signature = Vec<String>;

/// Returns the functions that the header declares, with their types in C.
fn declared() -> BTreeMap<String, Signature> {
    let text = fs::read_to_string(package().join("include/larder_cuda.h")).unwrap();
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").unwrap().1;
    }
    code.push_str(rest);
    let is_of_code = |line: &&str| !line.starts_with('#');
    let code: Vec<_> = code.lines().filter(is_of_code).collect();
    let code = code.join(" ");
    let functions = code.split(';').filter(|part| part.contains('('));
    let parse = |declaration: &str| {
        let (head, arguments) = declaration.split_once('(').unwrap();
        let at = head.find("larder_cuda_").unwrap();
        let given = head[..at].rsplit(['{', '}']).next().unwrap().trim();
        let arguments = arguments.trim_end().trim_end_matches(')');
        let taken = arguments.split(',').filter(|taken| *taken != "void");
        let mut types: Signature = taken.map(without_name).collect();
        types.push(given.replace(' ', ""));
        (head[at..].to_owned(), types)
    };
    functions.map(parse).collect()
}

/// Returns the C type of a parameter, which is `type name`.
fn without_name(argument: &str) -> String {
    let argument = argument.trim();
    let end = argument.rfind(['*', ' ']).unwrap();
    let is_pointer = argument[end..].starts_with('*');
    argument[..end + usize::from(is_pointer)].replace(' ', "")
}

/// Returns the functions that the sources export, with their types in C.
fn exported() -> BTreeMap<String, Signature> {
    let mut found = BTreeMap::new();
    for file in fs::read_dir(package().join("src")).unwrap() {
        let path = file.unwrap().path();
        // The driver's own header declares the functions in front of the driver.
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let (head, _) = part.split_once('{').unwrap();
            let (_, head) = head.split_once("fn ").unwrap();
            let (name, types) = head.split_once('(').unwrap();
            let (arguments, given) = types.rsplit_once(')').unwrap();
            let arguments = arguments.split(',').map(str::trim);
            let taken = arguments.filter(|argument| !argument.is_empty());
            let mut types: Signature = taken
                .map(|argument| of_rust(argument.split_once(": ").unwrap().1))
                .collect();
            types.push(of_rust(given.trim().trim_start_matches("-> ")));
            found.insert(name.to_owned(), types);
        }
    }
    found
}

/// Returns the C type for a Rust type.
fn of_rust(name: &str) -> String {
    let words = match name {
        "" => "void",
        "isize" => "ssize_t",
        "usize" => "size_t",
        "u64" => "uint64_t",
        "f64" => "double",
        "c_int" => "int",
        "Handle" => "structCUstream_st*",
        "*mut c_void" => "void*",
        "*mut *mut c_void" => "void**",
        "*mut u64" => "uint64_t*",
        "*mut ManagedTensor" => "structDLManagedTensor*",
        "*mut c_char" => "char*",
        "*const c_char" => "constchar*",
        "*mut DeviceStats" => "structlarder_cuda_counters*",
        other => panic!("{other} is not known to this test"),
    };
    words.to_owned()
}

#[test]
fn the_header_declares_what_the_library_exports_with_the_same_types() {
    let (declared, exported) = (declared(), exported());
    assert_eq!(declared, exported);
    assert!(declared.len() > 20);
}

#[test]
fn the_library_exports_nothing_else() {
    let Ok(output) = Command::new("nm")
        .arg("-D")
        .arg("--defined-only")
        .arg(library())
        .output()
    else {
        println!("skipped: there is no nm");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.rsplit(' ').next());
    let (own, others): (Vec<_>, Vec<_>) = names
        .map(str::to_owned)
        .partition(|name| name.starts_with("larder_"));
    assert_eq!(own, exported().into_keys().collect::<Vec<_>>());
    // Each function in front of the driver has the names by which programs link it and look it up.
    let table = fs::read_to_string(package().join("src/interpose/table.rs")).unwrap();
    let found = table.lines().filter_map(|line| {
        let (names, _) = line.strip_prefix("    fn ")?.split_once('(')?;
        Some(names.split(", ").map(str::to_owned))
    });
    let found = found.flatten();
    let mut found: Vec<_> = found.chain(["dlsym".to_owned()]).collect();
    found.sort();
    assert_eq!(others, found);
}

#[test]
fn cpp_gets_exceptions_with_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path(), "throws.cpp") else {
        return;
    };
    let output = on_stand_in(program).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

#[test]
fn cpp_with_pytorch_gets_pytorchs_exception() {
    let folder = tempfile::tempdir().unwrap();
    let Some(c10) = compiled_shared(folder.path(), "c10.cpp", "libc10_cuda.so") else {
        return;
    };
    let folder_option = format!("-Wl,-rpath,{}", folder.path().display());
    let options = [
        "-DWITH_PYTORCH",
        "-Wl,--no-as-needed",
        c10.to_str().unwrap(),
        &folder_option,
    ];
    let program = compiled_with(folder.path(), "throws.cpp", &options).unwrap();
    let output = on_stand_in(program).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
}
