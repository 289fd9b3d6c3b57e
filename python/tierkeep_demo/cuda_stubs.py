"""Lets PyPI's torch wheel run on a machine without a GPU and without 5 GB of CUDA wheels.

The wheel's libraries name CUDA libraries that must be loadable, though nothing in them is called
on CPU. This writes a tiny stand-in for each: every function answers "no device". For tests and
demonstrations only. Needs gcc and binutils.

  python -m tierkeep_demo.cuda_stubs   # with the interpreter that has torch; prints a directory
                                       # for LD_LIBRARY_PATH
"""

import collections
import fcntl
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile

# libcuda itself belongs to the driver; torch loads it only when a driver is there.
_CUDA_LIBRARY = re.compile(r"lib(cu(?!da\.so)|nv|nccl)")
_CUDA_SYMBOL = re.compile(r"(__cuda|cuda|cu[A-Z]|cublas|cudnn|cufft|cupti|curand|cusolver|"
                          r"cusparse|nccl|pnccl|nvrtc|nvshmem|nvJitLink|nvtx)")
_NO_DEVICE = 100  # cudaErrorNoDevice


def _torch_libraries():
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise RuntimeError("torch is not installed in " + sys.prefix)
    return sorted(glob.glob(os.path.join(os.path.dirname(spec.origin), "lib", "*.so*")))


def _readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True,
                          check=True).stdout


def _needed_libraries(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _readelf("-d", path))


def _version_homes(path):
    """{symbol version: library that must define it} of one shared object."""
    homes, library = {}, None
    for line in _readelf("-V", path).splitlines():
        if m := re.search(r"File: (\S+)", line):
            library = m[1]
        elif library and (m := re.search(r"Name: (\S+)", line)):
            homes[m[1]] = library
    return homes


def _dynamic_symbols(path):
    """(defined names, undefined [(name, version or "")]) of one shared object."""
    defined, undefined = set(), []
    for line in _readelf("--dyn-syms", path).splitlines():
        part = line.split()
        if len(part) < 8 or not part[0].endswith(":") or not part[0][:-1].isdigit():
            continue
        name, _, version = part[7].partition("@")
        if part[6] == "UND":
            undefined.append((name, version.lstrip("@")))
        else:
            defined.add(name)
    return defined, undefined


def _plan(libraries):
    """{stub library: {version: names}}. An undefined symbol with a version must come from the
    library that the version table names; one without may come from any, so all stubs have it."""
    present = {os.path.basename(x) for x in libraries}
    stubs, defined, free = {}, set(), set()
    versioned = collections.defaultdict(lambda: collections.defaultdict(set))
    for path in libraries:
        for name in _needed_libraries(path):
            if name not in present and _CUDA_LIBRARY.match(name):
                stubs[name] = {}
        homes = _version_homes(path)
        own, wanted = _dynamic_symbols(path)
        defined |= own
        for name, version in wanted:
            if version:
                versioned[homes.get(version)][version].add(name)
            elif _CUDA_SYMBOL.match(name):
                free.add(name)
    for library in stubs:
        stubs[library] = {v: names for v, names in versioned[library].items()}
        taken = set().union(*stubs[library].values()) if stubs[library] else set()
        stubs[library][""] = free - defined - taken
    return stubs


def _source(names):
    lines = []
    for name in sorted(names):
        if re.search(r"Get(Last)?Error(String|Name)|ErrorString", name):
            body = 'return (long)"no device";'
        elif name.startswith("__cuda") or name in ("cudaGetLastError", "cudaPeekAtLastError"):
            body = "return 0;"
        else:
            body = f"return {_NO_DEVICE};"
        lines.append(f"long {name}(void) {{ {body} }}")
    return "\n".join(lines) + "\n"


def _build(target, library, by_version):
    names = set().union(*by_version.values())
    source, script = (os.path.join(target, library + x) for x in (".c", ".map"))
    with open(source, "w", encoding="utf-8") as f:
        f.write(_source(names) if names else "int tierkeep_empty_stub;\n")
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-O1", source,
               "-o", os.path.join(target, library), f"-Wl,-soname,{library}"]
    tagged = {v: n for v, n in by_version.items() if v and n}
    if tagged:
        with open(script, "w", encoding="utf-8") as f:
            for version, members in tagged.items():
                f.write(f"{version} {{ global: {'; '.join(sorted(members))}; }};\n")
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)
    for path in (source, script):
        if os.path.exists(path):
            os.unlink(path)


def ensure():
    """Returns the directory with the stubs of this interpreter's torch, made on first use;
    several programs may ask at once. None where torch has its real libraries."""
    libraries = _torch_libraries()
    if importlib.util.find_spec("nvidia") is not None:
        return None
    target = os.path.join(sys.prefix, "cuda-stubs")
    with open(os.path.join(sys.prefix, ".cuda-stubs.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(target):
            return target
        temporary = tempfile.mkdtemp(prefix=".cuda-stubs-", dir=sys.prefix)
        try:
            for library, by_version in _plan(libraries).items():
                _build(temporary, library, by_version)
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return target


if __name__ == "__main__":
    print(ensure() or "")
