//! Settings from environment variables: each name, its valid values, and the report of invalid ones.

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

/// Asserts that variables change the default settings as `change` does, and in no other way.
#[track_caller]
fn assert_read(vars: &[(&str, &str)], change: impl FnOnce(&mut RuntimeConfig)) {
    let mut expected = RuntimeConfig::default();
    change(&mut expected);
    assert_eq!(read(vars), (expected, vec![]), "{vars:?}");
}

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
    assert_read(&[], |_| ());
    let config = RuntimeConfig::default();
    assert_eq!(config.cpu_limit_bytes, 65_536 * MIB);
    assert_eq!(config.pinned_limit_bytes, 65_536 * MIB);
    assert_eq!(config.vmem_host_limit_bytes, 65_536 * MIB);
    assert!(config.vmem && config.collect_regions);
    assert_eq!((config.cpu_bfc, config.force_growth), (None, None));
    let rest = (config.planned_percent, config.gpu_kind);
    assert_eq!(rest, (100, GpuKind::Default));
    assert_eq!((config.config_file, config.status_file), (None, None));
}

/// A variable's valid texts, with their values, and its invalid texts.
type Texts<T> = (&'static [(&'static str, T)], &'static [&'static str]);

const TRUTHS: Texts<bool> = (
    &[
        ("0", false),
        ("false", false),
        ("FALSE", false),
        ("False", false),
        ("1", true),
        ("true", true),
        ("TrUe", true),
    ],
    &["", "yes", "2", " 1", "01", "true "],
);

const WORDS: Texts<bool> = (
    &[("false", false), ("true", true)],
    &["", "1", "0", "True", "FALSE", "true "],
);

const MEBIBYTES: Texts<u64> = (
    &[
        ("0", 0),
        ("1", MIB),
        ("+7", 7 * MIB),
        ("65537", 65_537 * MIB),
        ("17592186044415", u64::MAX / MIB * MIB),
    ],
    &[
        "",
        "-1",
        "1.5",
        "1k",
        " 1",
        "17592186044416",
        "9223372036854775808",
    ],
);

const PERCENT: Texts<u64> = (
    &[
        ("0", 0),
        ("80", 80),
        ("150", 150),
        ("9223372036854775807", i64::MAX as u64),
    ],
    &["-1", "", "80%", "9223372036854775808"],
);

fn check<T: Copy>(name: &'static str, texts: Texts<T>, set: fn(&mut RuntimeConfig, T)) {
    for (text, value) in texts.0 {
        assert_read(&[(name, text)], |config| set(config, *value));
    }
    for text in texts.1 {
        assert_bad(name, text);
    }
}

#[test]
fn each_variable_changes_its_setting_and_a_text_without_a_value_none() {
    check("TF_CPU_ALLOCATOR_USE_BFC", TRUTHS, |config, on| {
        config.cpu_bfc = Some(on);
    });
    check("TF_GPU_VMEM", TRUTHS, |config, on| config.vmem = on);
    check("ENABLE_MEMORY_OPTIMIZATION", TRUTHS, |config, on| {
        config.planner.enabled = on;
    });
    check("TF_FORCE_GPU_ALLOW_GROWTH", WORDS, |config, on| {
        config.force_growth = Some(on);
    });
    check("TF_ENABLE_GPU_GARBAGE_COLLECTION", WORDS, |config, on| {
        config.collect_regions = on;
    });
    check("TF_CPU_BFC_MEM_LIMIT_IN_MB", MEBIBYTES, |config, bytes| {
        config.cpu_limit_bytes = bytes;
    });
    check("TF_GPU_HOST_MEM_LIMIT_IN_MB", MEBIBYTES, |config, bytes| {
        config.pinned_limit_bytes = bytes;
    });
    check(
        "TF_CUDA_HOST_MEM_LIMIT_IN_MB",
        MEBIBYTES,
        |config, bytes| {
            config.vmem_host_limit_bytes = bytes;
        },
    );
    check("TF_RO_PLANNED_GPU", PERCENT, |config, percent| {
        config.planned_percent = percent;
    });
}

#[test]
fn the_allocator_is_one_of_five_and_another_name_is_an_error() {
    use GpuKind::{CudaMalloc, CudaMallocAsync, Default, MemoryGuard, TensorPool};
    for kind in [
        Default,
        MemoryGuard,
        CudaMalloc,
        CudaMallocAsync,
        TensorPool,
    ] {
        let vars = [("TF_GPU_ALLOCATOR", kind.name())];
        assert_read(&vars, |config| config.gpu_kind = kind);
    }
    for text in ["bfc", "Memory_Guard", "cuda_malloc ", "tensor_pool", "0"] {
        let lookup = |name: &str| (name == "TF_GPU_ALLOCATOR").then(|| text.to_owned());
        let error = RuntimeConfig::from_vars(lookup).unwrap_err();
        assert_eq!((error.name, &*error.text), ("TF_GPU_ALLOCATOR", text));
        assert!(error.to_string().contains("memory_guard"));
    }
}

#[test]
fn files_are_taken_as_they_are_and_a_control_file_forces_growth_and_vmem() {
    let off = [("TF_GPU_VMEM", "0"), ("TF_FORCE_GPU_ALLOW_GROWTH", "false")];
    let file = |name| {
        [
            off[0],
            off[1],
            ("GPU_CONFIG_FILE", name),
            ("GPU_STATUS_FILE", "/a/b"),
        ]
    };
    assert_read(&file(" a b "), |config| {
        config.config_file = Some(" a b ".into());
        config.status_file = Some("/a/b".into());
        config.force_growth = Some(true);
    });
    assert_read(&file(""), |config| {
        config.status_file = Some("/a/b".into());
        (config.vmem, config.force_growth) = (false, Some(false));
    });
}

#[test]
fn the_planner_takes_its_five_names() {
    let names = [
        ("START_STATISTIC_STEP", "3"),
        ("STABLE_STATISTIC_STEP", "4"),
        ("MAX_STATISTIC_STEP", "5"),
        ("STOP_STATISTIC_STEP", "6"),
    ];
    let (start, stable, max) = (3, 4, 5);
    assert_read(&names, |config| {
        config.planner.window = Window { start, stable, max }
    });
    for (name, _) in names {
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
    // The values depend on the machine. The environment must not change.
    let before: Vec<_> = std::env::vars_os().collect();
    let _ = RuntimeConfig::from_env();
    assert_eq!(before, std::env::vars_os().collect::<Vec<_>>());
}
