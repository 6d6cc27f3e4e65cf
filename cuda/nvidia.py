#!/usr/bin/env python3
"""Compares what this project wrote down of CUDA with what NVIDIA publishes. Needs no GPU.

    cuda/nvidia.py            all of it
    cuda/nvidia.py FOLDER     the same, with what was fetched kept in FOLDER (else target/nvidia)

    ptx       every PTX text of tests, examples and benches is assembled by ptxas
    header    result codes, constants, structures and the functions' prototypes of larder-cuda-abi, beside cuda.h
    versions  the versions since which there are the functions, beside cudaTypedefs.h
    library   the functions' names beside those of libcuda, and what its cuGetProcAddress answers

ptxas and cuda.h come from the Python registry, libcuda from Debian's packages; they are fetched once. What
cannot be had is skipped with a word. The exit code is 1 if something differs.
"""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Packages of the Python registry: the assembler and the headers of the last 12 and of a 13.
PTXAS = [("nvidia-cuda-nvcc-cu12", "12.9.86"), ("nvidia-cuda-nvcc", "13.5.37")]
HEADERS = [("nvidia-cuda-runtime-cu12", "12.9.79"), ("nvidia-cuda-runtime", "13.5.37")]
# Devices to assemble for, beside a text's own: those of an assembler that knows them.
DEVICES = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
# Functions that another header has.
ELSEWHERE = {"cuProfilerStart", "cuProfilerStop"}
# Texts that no driver is meant to take: the stand-in reads them in its own tests.
NOT_PTX = {"cuda/stand-in/src/ptx.rs"}
MINUTE = 60

differences = 0
# Whether the Python registry was asked in vain: it is not asked again.
unreachable = False


def say(part, text):
    print(f"{part:<9} {text}", flush=True)


def differs(part, text):
    global differences
    differences += 1
    say(part, f"DIFFERS: {text}")


def run(*command, **more):
    """A finished process with its words, or None if the program is not there or took too long."""
    try:
        return subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=MINUTE, check=False, **more
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


# What is fetched.


def package(cache, name, version, wanted):
    """The files of a package whose names end in one of `wanted`, by that end; None if it cannot be had."""
    global unreachable
    folder = cache / f"{name}-{version}"
    if not folder.is_dir():
        if unreachable:
            return None
        fetched = cache / "fetched"
        shutil.rmtree(fetched, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
        done = run(*pip, "--timeout=15", "--retries=1", "--dest", fetched, f"{name}=={version}")
        wheels = list(fetched.glob("*.whl"))
        if done is None or done.returncode != 0 or not wheels:
            unreachable = True
            return None
        half = cache / "unpacked"
        shutil.rmtree(half, ignore_errors=True)
        with zipfile.ZipFile(wheels[0]) as archive:
            for member in archive.namelist():
                if member.endswith(wanted):
                    archive.extract(member, half)
        half.rename(folder)
        shutil.rmtree(fetched, ignore_errors=True)
    found = {path.name: path for path in folder.rglob("*") if path.is_file()}
    return found or None


def library(cache):
    """Debian's libcuda; None where there is no apt or the package cannot be had."""
    folder = cache / "libcuda"
    if not folder.is_dir():
        keys = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        if not keys.is_file() or shutil.which("apt-get") is None:
            return None
        apt = cache / "apt"
        shutil.rmtree(apt, ignore_errors=True)
        for part in ("lists/partial", "archives/partial"):
            (apt / part).mkdir(parents=True)
        source = apt / "sources.list"
        source.write_text(f"deb [signed-by={keys}] http://deb.debian.org/debian bookworm non-free\n")
        own = [
            f"Dir::Etc::sourcelist={source}",
            "Dir::Etc::sourceparts=/dev/null",
            f"Dir::State::lists={apt}/lists",
            f"Dir::Cache={apt}",
            "APT::Sandbox::User=root",
            "Acquire::http::Timeout=15",
        ]
        options = [word for option in own for word in ("-o", option)]
        for act in (["update"], ["download", "libcuda1"]):
            done = run("apt-get", "-qq", *options, *act, cwd=apt)
            if done is None or done.returncode != 0:
                return None
        packages = list(apt.glob("libcuda1_*.deb"))
        half = cache / "unpacked"
        shutil.rmtree(half, ignore_errors=True)
        done = packages and run("dpkg-deb", "-x", packages[0], half)
        if not done or done.returncode != 0:
            return None
        half.rename(folder)
        shutil.rmtree(apt, ignore_errors=True)
    return next((path for path in folder.rglob("libcuda.so.*") if not path.is_symlink()), None)


# What this project wrote down.


def unescaped(literal):
    return literal.replace("\\n", "\n").replace("\\t", "\t").replace("\\0", "")


def ptx_texts():
    """Every PTX text with its place."""
    listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.ptx")
    literal = re.compile(r'"((?:[^"\\]|\\.)*?\.version\s+\d(?:[^"\\]|\\.)*)"', re.DOTALL)
    for path in sorted(listed.stdout.split()):
        if path in NOT_PTX:
            continue
        text = text_of(path)
        if path.endswith(".ptx"):
            yield path, text
            continue
        for found in literal.finditer(text):
            # A text without a target is one that a test wants refused.
            if ".target" in found[1]:
                line = text.count("\n", 0, found.start()) + 1
                yield f"{path}:{line}", unescaped(found[1]).lstrip()


def codes():
    """Name and number of every result code."""
    rows = re.findall(r'^    (\w+) = (\d+)\s+"', text_of("cuda/abi/src/code.rs"), re.MULTILINE)
    return [("CUDA_SUCCESS", 0), *((f"CUDA_ERROR_{name}", int(number)) for name, number in rows)]


def fatal_codes():
    """Names of the codes of ours after which a process must end."""
    body = text_of("cuda/abi/src/code.rs").split("fn is_fatal(self)")[1].split("    }\n")[0]
    return {f"CUDA_ERROR_{name}" for name in re.findall(r"Self::(\w+)", body)}


def constants():
    """Ours, its number, and NVIDIA's name, which the test beside cudarc's bindings has."""
    ours = re.findall(r"pub const (\w+): u32 = (\d+);", text_of("cuda/abi/src/constants.rs"))
    pairs = re.findall(r"^ +([A-Z]\w+) =\s+([\w:]+)", text_of("cuda/tests/all/layout.rs"), re.MULTILINE)
    names = {name: theirs.split("::")[-1] for name, theirs in pairs}
    return [(name, int(number), names.get(name)) for name, number in ours]


STRUCTS = {
    "Location": ("CUmemLocation", {"kind": "type"}),
    "AllocFlags": (None, {}),
    "AllocationProp": (
        "CUmemAllocationProp",
        {
            "kind": "type",
            "handle_types": "requestedHandleTypes",
            "win32_meta_data": "win32HandleMetaData",
            "flags": "allocFlags",
        },
    ),
    "AccessDesc": ("CUmemAccessDesc", {}),
    "PoolProps": (
        "CUmemPoolProps",
        {
            "kind": "allocType",
            "handle_types": "handleTypes",
            "win32_security_attributes": "win32SecurityAttributes",
            "max_bytes": "maxSize",
        },
    ),
    "LaunchConfig": (
        "CUlaunchConfig",
        {
            "grid": "gridDimX",
            "block": "blockDimX",
            "shared_bytes": "sharedMemBytes",
            "stream": "hStream",
            "attributes": "attrs",
            "attribute_count": "numAttrs",
        },
    ),
    "DeviceUuid": ("CUuuid", {}),
}
# Fields inside a structure's part that has no name of its own.
PARTS = {
    "CUmemAllocationProp": {
        "AllocFlags": {
            "compression": "allocFlags.compressionType",
            "rdma_capable": "allocFlags.gpuDirectRDMACapable",
            "usage": "allocFlags.usage",
            "reserved": "allocFlags.reserved",
        }
    }
}
HANDLES = {
    "ContextHandle": "CUcontext",
    "StreamHandle": "CUstream",
    "EventHandle": "CUevent",
    "PoolHandle": "CUmemoryPool",
    "ModuleHandle": "CUmodule",
    "FunctionHandle": "CUfunction",
    "GraphHandle": "CUgraph",
    "GraphNodeHandle": "CUgraphNode",
    "GraphExecHandle": "CUgraphExec",
    "MemoryHandle": "CUmemGenericAllocationHandle",
}
C_TYPES = {
    "u8": "unsigned char",
    "u16": "unsigned short",
    "u32": "unsigned int",
    "i32": "int",
    "u64": "unsigned long long",
    "usize": "size_t",
    "*mut c_void": "void *",
}


def structs():
    """Each structure's name and its fields, as C text."""
    text = text_of("cuda/abi/src/types.rs")
    for name, body in re.findall(r"#\[repr\(C\)\]\npub struct (\w+) \{(.*?)\n\}", text, re.DOTALL):
        fields = []
        for field, kind in re.findall(r"pub (\w+): ([^,\n]+),", body):
            array = re.fullmatch(r"\[(\w+); (\d+)\]", kind)
            kind, many = (array[1], f"[{array[2]}]") if array else (kind, "")
            if kind in HANDLES:
                kind = HANDLES[kind]
            elif kind in STRUCTS:
                kind = f"struct Our{kind}"
            else:
                kind = C_TYPES[kind]
            fields.append((field, f"{kind} {field}{many};"))
        yield name, fields


def parameters(text):
    """The types of a Rust list of parameters."""
    parts, depth, last = [], 0, ""
    for letter in text:
        depth += letter in "<([" or 0
        depth -= letter in ">)]" or 0
        if letter == "," and depth == 0:
            parts.append(last.strip())
            last = ""
        else:
            last += letter
    parts.append(last.strip())
    return [part for part in parts if part]


def table():
    """Name, version and the types of the parameters of every function in the table of larder-cuda-abi."""
    text = text_of("cuda/abi/src/functions.rs")
    for name, listed, since in re.findall(r"^ +fn (cu\w+)\(([^)]*)\) since (\d+);", text, re.MULTILINE):
        yield name, int(since), [part.split(":", 1)[1].strip() for part in parameters(listed)]


# The comparisons.


def ptx(cache):
    texts = list(ptx_texts())
    if not texts:
        differs("ptx", "no text was found; how they are looked for has gone stale")
    work = cache / "ptx"
    work.mkdir(parents=True, exist_ok=True)
    for name, version in PTXAS:
        found = package(cache, name, version, ("bin/ptxas",))
        if found is None:
            say("ptx", f"skipped: {name} {version} cannot be had")
            continue
        assembler = found["ptxas"]
        assembler.chmod(0o755)
        times = 0
        for place, text in texts:
            own = re.search(r"\.target\s+(sm_\d+)", text)[1]
            file = work / "text.ptx"
            file.write_text(text, encoding="utf-8")
            for device in [own, *(device for device in DEVICES if int(device[3:]) > int(own[3:]))]:
                done = run(assembler, f"--gpu-name={device}", "-o", work / "text.cubin", file)
                words = done.stderr.strip() if done else "it took too long"
                if "is not defined for option 'gpu-name'" in words:
                    continue
                times += 1
                if done is None or done.returncode != 0:
                    differs("ptx", f"{place} for {device}, by ptxas {version}:\n{words}")
        if times < len(texts):
            differs("ptx", f"ptxas {version} knows none of the devices")
        say("ptx", f"{len(texts)} texts assembled {times} times by ptxas {version}")


def header(cache):
    if shutil.which("cc") is None:
        say("header", "skipped: there is no C compiler")
        return
    for name, version in HEADERS:
        found = package(cache, name, version, ("include/cuda.h", "include/cudaTypedefs.h"))
        if found is None:
            say("header", f"skipped: {name} {version} cannot be had")
            continue
        values(cache, found["cuda.h"], version)
        fatal(found["cuda.h"], version)
        prototypes(found["cuda.h"], version)
        if "cudaTypedefs.h" in found:
            versions(found["cudaTypedefs.h"], version)


def values(cache, path, version):
    """Codes, constants and layouts: a C program prints what differs."""
    lines = ["#include <stdio.h>", "#include <stddef.h>", f'#include "{path}"']
    checks = [(f"(long long)({code})", number, code) for code, number in codes()]
    for name, number, theirs in constants():
        if theirs is None:
            differs("header", f"{name} has no name of NVIDIA's in cuda/tests/all/layout.rs")
        else:
            checks.append((f"(long long)({theirs})", number, f"{name}, {theirs}"))
    checks.append(("(long long)(size_t)CU_STREAM_LEGACY", 1, "StreamHandle::LEGACY"))
    checks.append(("(long long)(size_t)CU_STREAM_PER_THREAD", 2, "StreamHandle::PER_THREAD"))
    for ours, theirs in HANDLES.items():
        checks.append((f"(long long)sizeof({theirs})", 8, ours))
    seen = list(structs())
    for name, fields in seen:
        lines.append(f"struct Our{name} {{ {' '.join(field for _, field in fields)} }};")
        theirs, names = STRUCTS[name]
        if theirs is None:
            continue
        checks.append((f"(long long)sizeof({theirs})", f"sizeof(struct Our{name})", name))
        for field, _ in fields:
            # Later versions cut fields from what was reserved, which we set to zero.
            if field != "reserved":
                place = f"offsetof({theirs}, {names.get(field, field)})"
                checks.append((place, f"offsetof(struct Our{name}, {field})", f"{name}::{field}"))
        for part, inside in PARTS.get(theirs, {}).items():
            for field, other in inside.items():
                ours = f"offsetof(struct Our{name}, flags) + offsetof(struct Our{part}, {field})"
                checks.append((f"offsetof({theirs}, {other})", ours, f"{part}::{field}"))
    missing = set(STRUCTS) - {name for name, _ in seen}
    if missing:
        differs("header", f"structures that were not found: {missing}")
    lines.append("int main(void) {")
    for theirs, ours, name in checks:
        lines.append(
            f'    if ((long long)({theirs}) != (long long)({ours})) printf("{name} is %lld and not %lld\\n", '
            f"(long long)({theirs}), (long long)({ours}));"
        )
    lines += ["    return 0;", "}"]
    source, program = cache / "values.c", cache / "values"
    source.write_text("\n".join(lines) + "\n")
    built = run("cc", "-w", "-o", program, source)
    if built is None or built.returncode != 0:
        words = "\n".join(built.stderr.splitlines()[:20]) if built else "no C compiler"
        differs("header", f"cuda.h of {version} lacks what we name:\n{words}")
        return
    for line in run(program).stdout.splitlines():
        differs("header", f"{line} in cuda.h of {version}")
    say("header", f"{len(checks)} numbers and places beside cuda.h of {version}")


def fatal(path, version):
    """The codes whose comment says that the process must end."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("typedef enum cudaError_enum") : text.index("} CUresult")]
    theirs = set()
    for words, name in re.findall(r"/\*\*(.*?)\*/\s*(CUDA_\w+)\s*=", text, re.DOTALL):
        if "process must be terminated" in " ".join(words.replace("*", " ").split()):
            theirs.add(name)
    if not theirs:
        differs("header", f"no code of {version} ends a process; how they are looked for has gone stale")
    for name in sorted(theirs - fatal_codes()):
        differs("header", f"after {name} a process must end, says cuda.h of {version}, and is_fatal does not")
    say("header", f"{len(theirs)} codes that end a process beside cuda.h of {version}")


# What stands for a type of C's: the word of ours, and how deep the pointers are.
WORDS = {
    "int": "i32",
    "CUdevice": "i32",
    "unsigned int": "u32",
    "cuuint32_t": "u32",
    "size_t": "usize",
    "CUdeviceptr": "u64",
    "cuuint64_t": "u64",
    "unsigned long long": "u64",
    "CUmemGenericAllocationHandle": "u64",
    "float": "f32",
    "unsigned char": "u8",
    "unsigned short": "u16",
    "char": "i8",
    "void": "void",
    "CUresult": "u32",
}
OURS = {
    "c_char": "i8",
    "c_void": "void",
    "DevicePtr": "u64",
    "Code": "u32",
    "HostFunction": "CUhostFn",
    "SharedMemoryOf": "CUoccupancyB2DSize",
}


def their_kind(text, enums):
    depth = text.count("*")
    text = re.sub(r"\bconst\b|\bstruct\b", " ", text)
    array = re.search(r"\[", text) is not None
    base = re.sub(r"\[.*", "", text).replace("*", " ").split()
    while len(base) > 1 and " ".join(base) not in WORDS:
        base.pop()
    word = " ".join(base)
    return ("u32" if word in enums else WORDS.get(word, word)), depth + array


def our_kind(text):
    depth = text.count("*")
    text = re.sub(r"\*(mut|const) ", "", text)
    known = {**OURS, **HANDLES, **{name: theirs for name, (theirs, _) in STRUCTS.items()}}
    known["MemoryHandle"] = "u64"
    return known.get(text, text), depth


def prototypes(path, version):
    texts = []
    for define in ([], ["-D__CUDA_API_VERSION_INTERNAL"]):
        done = run("cc", "-E", "-P", *define, path)
        texts.append(done.stdout)
    enums = set(re.findall(r"\}\s*(CU\w+);", "\n".join(re.findall(r"typedef enum\b[^;]*?\}\s*\w+;", texts[0]))))
    theirs = {}
    for text in reversed(texts):
        for name, listed in re.findall(r"CUresult\s+(cu\w+)\s*\(([^;]*?)\)\s*;", text, re.DOTALL):
            listed = " ".join(listed.split())
            parts = [] if listed == "void" else listed.split(",")
            theirs[re.sub(r"_pt[sd][sz]$", "", name)] = [their_kind(part, enums) for part in parts]
    count = 0
    for name, _, listed in table():
        if name in ELSEWHERE:
            continue
        if name not in theirs:
            differs("header", f"{name} is not in cuda.h of {version}")
            continue
        count += 1
        ours = [our_kind(part) for part in listed]
        if len(ours) != len(theirs[name]) or not all(map(same, ours, theirs[name])):
            differs("header", f"{name} takes {ours}, and {theirs[name]} in cuda.h of {version}")
    if count < 100:
        differs("header", f"{count} prototypes were found; how they are looked for has gone stale")
    say("header", f"{count} prototypes beside cuda.h of {version}")


def same(ours, theirs):
    (word, depth), (their_word, their_depth) = ours, theirs
    # What a further argument says the type of, and structures that nobody here has.
    return depth == their_depth and (word == their_word or depth > 0 and word == "void")


def versions(path, version):
    text = path.read_text(encoding="utf-8")
    count = 0
    for name, since, _ in table():
        base, own = re.fullmatch(r"(\w+?)(?:_v(\d+))?", name).groups()
        known = sorted({int(number) for number in re.findall(rf"PFN_{base}_v(\d{{4,}})\b", text)})
        # The n-th function of a name has n in its name; the first has nothing.
        place = int(own or 1) - 1
        if name not in ELSEWHERE and (place >= len(known) or known[place] != since):
            differs("versions", f"{name} is said to be of {since}; cudaTypedefs.h has {known}")
        count += 1
    say("versions", f"{count} functions beside cudaTypedefs.h of {version}")


def names(cache):
    path = library(cache)
    if path is None or shutil.which("nm") is None:
        say("library", "skipped: libcuda cannot be had")
        return
    done = run("nm", "-D", "--defined-only", path)
    theirs = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines() if line.strip()}
    known = [name for name, _, _ in table()]
    newer = sorted(name for name in known if name not in theirs)
    used = re.search(r"^api! \{(.*?)^\}", text_of("cuda/src/driver/api.rs"), re.DOTALL | re.MULTILINE)[1]
    for name in newer:
        if name in used.split():
            differs("library", f"{name} is not in {path.name}")
    say("library", f"{len(known)} names beside {path.name}, which lacks {' '.join(newer) or 'none'}")
    lookups(path, newer)


def lookups(path, newer):
    """cuGetProcAddress needs no GPU: what it answers beside what the stand-in's is to answer."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        say("library", f"skipped: {path.name} cannot be loaded: {error}")
        return
    at = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value

    def ask(base, version):
        found, status = ctypes.c_void_p(1), ctypes.c_int(-1)
        places = (ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(status))
        return library.cuGetProcAddress_v2(base.encode(), *places), status.value, found.value

    count = 0
    for name, since, _ in table():
        base = re.sub(r"_v\d+$", "", name)
        if name in newer:
            continue
        count += 1
        if ask(base, since) != (0, 0, at(name)):
            differs("library", f"{base} of {since} is not {name}")
        # The function of before has another name or is none.
        if ask(base, since - 10)[2] == at(name):
            differs("library", f"{name} is there before {since}")
    for base, version, status in [("cuMakeCoffee", 12_000, 1), ("cuMemAlloc_v2", 12_000, 1), ("cuMemAllocAsync", 11_010, 2)]:
        if ask(base, version) != (0, status, None):
            differs("library", f"{base} of {version} answers {ask(base, version)}")
    say("library", f"{count} functions looked up by version in {path.name}")


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        say("nvidia", "skipped: the programs that are fetched are for Linux on x86-64")
        return
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    cache = (Path(sys.argv[1]) if len(sys.argv) == 2 else target / "nvidia").resolve()
    cache.mkdir(parents=True, exist_ok=True)
    ptx(cache)
    header(cache)
    names(cache)
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
