//! Settings from variables: each name, its valid values, and the answer to others.

use std::path::PathBuf;

use larder_core::prmalloc::Window;
use larder_cuda::runtime::{BadVariable, GpuKind, RuntimeConfig};

const MIB: u64 = 1 << 20;

fn read(vars: &[(&str, &str)]) -> (RuntimeConfig, Vec<BadVariable>) {
    let lookup = |name: &str| {
        let found = vars.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| (*text).to_owned())
    };
    RuntimeConfig::from_vars(lookup).unwrap()
}

/// Asserts that a text changes nothing and is reported.
#[track_caller]
fn assert_bad(name: &'static str, text: &str) {
    let (config, bad) = read(&[(name, text)]);
    assert_eq!(config, RuntimeConfig::default(), "{name}={text}");
    assert_eq!(bad.len(), 1, "{name}={text}");
    assert_eq!((bad[0].name, bad[0].text.as_str()), (name, text));
    assert!(bad[0].to_string().contains(bad[0].wanted));
}

#[test]
fn nothing_set_is_the_default() {
    let (config, bad) = read(&[]);
    assert_eq!(config, RuntimeConfig::default());
    assert_eq!(bad, []);
    assert_eq!(config.cpu_limit_bytes, 65_536 * MIB);
    assert_eq!(config.pinned_limit_bytes, 65_536 * MIB);
    assert_eq!(config.vmem_host_limit_bytes, 65_536 * MIB);
    assert!(config.vmem && config.collect_regions);
    assert_eq!((config.cpu_bfc, config.force_growth), (None, None));
    assert_eq!(
        (config.planned_percent, config.gpu_kind),
        (100, GpuKind::Default)
    );
    assert_eq!((&config.config_file, &config.status_file), (&None, &None));
}

#[test]
fn truth_values_are_four_words_in_any_case() {
    let truths = [
        ("0", false),
        ("false", false),
        ("FALSE", false),
        ("False", false),
    ];
    let truths = truths
        .into_iter()
        .chain([("1", true), ("true", true), ("TrUe", true)]);
    for (text, value) in truths {
        let (config, bad) = read(&[("TF_CPU_ALLOCATOR_USE_BFC", text), ("TF_GPU_VMEM", text)]);
        assert_eq!(
            (config.cpu_bfc, config.vmem),
            (Some(value), value),
            "{text}"
        );
        assert_eq!(bad, []);
    }
    for text in ["", "yes", "2", " 1", "01", "true "] {
        for name in [
            "TF_CPU_ALLOCATOR_USE_BFC",
            "TF_GPU_VMEM",
            "ENABLE_MEMORY_OPTIMIZATION",
        ] {
            assert_bad(name, text);
        }
    }
}

#[test]
fn two_names_are_compared_letter_by_letter() {
    let names = [
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_ENABLE_GPU_GARBAGE_COLLECTION",
    ];
    let (config, bad) = read(&[(names[0], "false"), (names[1], "false")]);
    assert_eq!(
        (config.force_growth, config.collect_regions),
        (Some(false), false)
    );
    assert_eq!(bad, []);
    let (config, bad) = read(&[(names[0], "true"), (names[1], "true")]);
    assert_eq!(
        (config.force_growth, config.collect_regions),
        (Some(true), true)
    );
    assert_eq!(bad, []);
    for name in names {
        for text in ["", "1", "0", "True", "FALSE", "true "] {
            assert_bad(name, text);
        }
    }
}

#[test]
fn limits_are_mebibytes_that_fit_64_bits_as_bytes() {
    type Field = fn(&RuntimeConfig) -> u64;
    let names: [(&str, Field); 3] = [
        ("TF_CPU_BFC_MEM_LIMIT_IN_MB", |config| {
            config.cpu_limit_bytes
        }),
        ("TF_GPU_HOST_MEM_LIMIT_IN_MB", |config| {
            config.pinned_limit_bytes
        }),
        ("TF_CUDA_HOST_MEM_LIMIT_IN_MB", |config| {
            config.vmem_host_limit_bytes
        }),
    ];
    let max = u64::MAX / MIB;
    for (name, field) in names {
        for number in [0, 1, 65_537, max] {
            let (config, bad) = read(&[(name, &number.to_string())]);
            assert_eq!((field(&config), bad.len()), (number * MIB, 0), "{name}");
        }
        let (config, _) = read(&[(name, "+7")]);
        assert_eq!(field(&config), 7 * MIB);
        let above = (max + 1).to_string();
        for text in [
            "",
            "-1",
            "1.5",
            "1k",
            " 1",
            "9223372036854775808",
            above.as_str(),
        ] {
            assert_bad(name, text);
        }
    }
}

#[test]
fn the_threshold_is_a_percentage() {
    for (text, value) in [
        ("0", 0),
        ("80", 80),
        ("150", 150),
        ("9223372036854775807", i64::MAX as u64),
    ] {
        let (config, bad) = read(&[("TF_RO_PLANNED_GPU", text)]);
        assert_eq!((config.planned_percent, bad.len()), (value, 0));
    }
    for text in ["-1", "", "80%", "9223372036854775808"] {
        assert_bad("TF_RO_PLANNED_GPU", text);
    }
}

#[test]
fn the_allocator_is_one_of_five_and_another_name_is_an_error() {
    for kind in [
        GpuKind::Default,
        GpuKind::MemoryGuard,
        GpuKind::CudaMalloc,
        GpuKind::CudaMallocAsync,
        GpuKind::TensorPool,
    ] {
        let (config, bad) = read(&[("TF_GPU_ALLOCATOR", kind.name())]);
        assert_eq!((config.gpu_kind, bad.len()), (kind, 0));
    }
    for text in ["bfc", "Memory_Guard", "cuda_malloc ", "tensor_pool", "0"] {
        let lookup = |name: &str| (name == "TF_GPU_ALLOCATOR").then(|| text.to_owned());
        let error = RuntimeConfig::from_vars(lookup).unwrap_err();
        assert_eq!(
            (error.name, error.text.as_str()),
            ("TF_GPU_ALLOCATOR", text)
        );
        assert!(error.to_string().contains("memory_guard"));
    }
}

#[test]
fn files_are_taken_as_they_are_and_a_control_file_forces_growth_and_vmem() {
    let (config, bad) = read(&[
        ("GPU_CONFIG_FILE", " a b "),
        ("GPU_STATUS_FILE", "/tmp/status"),
        ("TF_GPU_VMEM", "0"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "false"),
    ]);
    assert_eq!(bad, []);
    assert_eq!(config.config_file, Some(PathBuf::from(" a b ")));
    assert_eq!(config.status_file, Some(PathBuf::from("/tmp/status")));
    assert_eq!((config.vmem, config.force_growth), (true, Some(true)));

    let (config, bad) = read(&[("GPU_CONFIG_FILE", ""), ("TF_GPU_VMEM", "0")]);
    assert_eq!(
        (config.config_file, config.vmem, bad.len()),
        (None, false, 0)
    );
    assert_eq!(config.force_growth, None);
}

#[test]
fn the_planner_takes_its_five_names() {
    let (config, bad) = read(&[("ENABLE_MEMORY_OPTIMIZATION", "0")]);
    assert!(!config.planner.enabled && bad.is_empty());
    let (config, bad) = read(&[
        ("START_STATISTIC_STEP", "3"),
        ("STABLE_STATISTIC_STEP", "4"),
        ("MAX_STATISTIC_STEP", "5"),
        ("STOP_STATISTIC_STEP", "6"),
    ]);
    assert_eq!(bad, []);
    let wanted = Window {
        start: 3,
        stable: 4,
        max: 5,
    };
    assert_eq!(config.planner.window, wanted);
    for name in [
        "START_STATISTIC_STEP",
        "STABLE_STATISTIC_STEP",
        "MAX_STATISTIC_STEP",
        "STOP_STATISTIC_STEP",
    ] {
        assert_bad(name, "soon");
    }
}

#[test]
fn all_that_is_wrong_is_reported_at_once() {
    let (config, bad) = read(&[
        ("TF_CPU_BFC_MEM_LIMIT_IN_MB", "much"),
        ("TF_GPU_VMEM", "no"),
        ("MAX_STATISTIC_STEP", "-"),
        ("TF_RO_PLANNED_GPU", "70"),
    ]);
    assert_eq!((bad.len(), config.planned_percent), (3, 70));
}

#[test]
fn the_environment_itself_can_be_read() {
    // What it says is the machine's; that it is read and never written is the point.
    let before: Vec<_> = std::env::vars_os().collect();
    let _ = RuntimeConfig::from_env();
    assert_eq!(before, std::env::vars_os().collect::<Vec<_>>());
}
