"""Which code runs, what happens where it cannot, what an import costs, and the argument checks."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rtmc.kernels import backend
from rtmc.kernels.returns import _returns_loop, discounted_returns

ROOT = Path(__file__).resolve().parents[1]
OP_FILES = sorted(path.stem for path in (ROOT / "kernels").glob("*.py"))


def python(code: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("RTMC_BACKEND", "TRITON_INTERPRET")}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        timeout=300,
        cwd=cwd,
    )


ONE_CALL = """
import torch
from rtmc.kernels.returns import discounted_returns
print(discounted_returns(torch.ones(3), torch.tensor([0, 3]), 0.5).tolist())
"""


def test_the_device_decides_when_nothing_is_asked(monkeypatch):
    monkeypatch.delenv("RTMC_BACKEND", raising=False)
    assert backend.backend_for("cpu") == "numba"
    assert backend.backend_for("cuda") == "triton"
    monkeypatch.setenv("RTMC_BACKEND", "")
    assert backend.backend_for("cpu") == "numba"


def test_the_reference_can_be_asked_for_on_any_device(monkeypatch):
    monkeypatch.setenv("RTMC_BACKEND", "reference")
    assert backend.backend_for("cpu") == backend.backend_for("cuda") == "reference"


def test_the_switch_reaches_the_op(monkeypatch):
    called = []

    def recorder(name):
        def run(x, n):
            called.append((name, n))
            return x.clone()

        return run

    op = backend.register_op(
        "test_backend_probe",
        "(Tensor x, int n=3) -> Tensor",
        **{name: recorder(name) for name in ("reference", "triton", "numba")},
        fake=lambda x, n: torch.empty_like(x),
    )
    monkeypatch.delenv("RTMC_BACKEND", raising=False)
    op(torch.ones(1))
    monkeypatch.setenv("RTMC_BACKEND", "reference")
    op(torch.ones(1), 4)
    monkeypatch.setenv("RTMC_BACKEND", "triton")
    monkeypatch.setattr(backend, "interpreting", lambda: True)
    op(torch.ones(1), 3)
    assert called == [("numba", 3), ("reference", 4), ("triton", 3)]


@pytest.mark.parametrize("word", ["numba", "Triton", "cuda", "1"])
def test_another_word_is_an_error_that_names_the_right_ones(monkeypatch, word):
    monkeypatch.setenv("RTMC_BACKEND", word)
    with pytest.raises(ValueError, match=rf"RTMC_BACKEND='{word}'.*'triton', 'reference'"):
        discounted_returns(torch.ones(1), torch.tensor([0, 1]), 0.5)


def test_triton_on_the_cpu_without_the_interpreter_raises():
    done = python(ONE_CALL, RTMC_BACKEND="triton")
    assert done.returncode != 0
    assert "TRITON_INTERPRET=1" in done.stderr.splitlines()[-1]


HIDE_TRITON = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
"""


def test_without_triton_every_file_imports_and_the_cpu_computes():
    code = f"HIDDEN = {{'triton'}}{HIDE_TRITON}import importlib\n"
    code += "".join(f"importlib.import_module('rtmc.kernels.{stem}')\n" for stem in OP_FILES)
    code += "from rtmc.kernels import backend\nassert not backend.HAS_TRITON\n" + ONE_CALL
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "[1.75, 1.5, 1.0]"
    refused = python(code, RTMC_BACKEND="triton")
    assert "Triton is not installed" in refused.stderr.splitlines()[-1]


def test_without_numba_what_is_plain_torch_computes():
    """token_logprobs is matrix products of torch, forward and backward; what is a loop of numba says what it lacks."""
    code = (
        f"HIDDEN = {{'numba'}}{HIDE_TRITON}"
        + """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "numba" else find(name, *more)
import torch
from rtmc.kernels.logprob import token_logprobs
from rtmc.kernels.returns import discounted_returns
for entropy in (False, True):
    hidden = torch.eye(2, requires_grad=True)
    got, own = token_logprobs(hidden, torch.zeros(4, 2), torch.tensor([0, 3]), entropy=entropy)
    got.sum().backward()
    print([round(x, 4) for x in got.tolist()], hidden.grad.tolist())
discounted_returns(torch.ones(3), torch.tensor([0, 3]), 0.5)
"""
    )
    done = python(code)
    assert done.stdout.splitlines() == ["[-1.3863, -1.3863] [[0.0, 0.0], [0.0, 0.0]]"] * 2, done.stderr
    assert done.returncode != 0
    assert "need numba" in done.stderr.splitlines()[-1]


def test_numba_is_looked_for_once(monkeypatch):
    asked = []
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: asked.append(name) or object())
    backend._has_numba.cache_clear()
    assert [backend.backend_for("cpu") for _ in range(3)] == ["numba"] * 3
    assert asked == ["numba"]
    backend._has_numba.cache_clear()


@pytest.mark.parametrize("number", [0.0, -0.0, 0.1, 1.0, -3.5, math.inf, -math.inf, 5e-324, 1.7e308])
def test_bits_of_a_number(number):
    assert torch.tensor([backend.bits_of(number)]).view(torch.float64).item().hex() == number.hex()


def test_without_triton_a_kernel_refuses_to_launch():
    code = f"HIDDEN = {{'triton'}}{HIDE_TRITON}"
    code += "from rtmc.kernels.returns import _returns_kernel\n_returns_kernel[(1,)]()"
    assert "`_returns_kernel` is a Triton kernel and Triton is not installed" in python(code).stderr


def test_importing_the_kernels_does_not_import_numba():
    code = "import sys, importlib\n"
    code += "".join(f"importlib.import_module('rtmc.kernels.{stem}')\n" for stem in OP_FILES)
    done = python(code + "print('numba' in sys.modules)\n" + ONE_CALL + "print('numba' in sys.modules)")
    assert done.returncode == 0, done.stderr
    # The last line shows that the first one could have failed.
    assert done.stdout.split("\n")[::2][:2] == ["False", "True"]


def test_a_compiled_function_calls_another():
    @backend.lazy_njit
    def caller(x):
        return _doubled(x) + 1

    assert _doubled(3) == 6
    caller_globals = caller.py_func.__globals__
    assert caller_globals["_doubled"] is _doubled
    assert caller(3) == 7


def test_a_compiled_function_of_another_file_is_refused():
    caller = backend.lazy_njit(lambda x: _returns_loop(x))
    with pytest.raises(TypeError, match="`_returns_loop` of another file"):
        caller(3)


@backend.lazy_njit
def _doubled(x):
    return 2 * x


NOTED = """
import warnings
warnings.simplefilter("always")
import rtmc.kernels.ids as ids, rtmc.kernels.returns as returns, torch
print(returns.discounted_returns(torch.ones(3), torch.tensor([0, 3]), 0.5).tolist())
print(ids.dense_ids(torch.tensor([5, 5, 2]))[0].tolist())
"""


@pytest.mark.parametrize("anywhere", [True, False], ids=["another folder is left", "none is left"])
def test_a_cache_that_cannot_be_written_is_noted_once(tmp_path, anywhere):
    """The kernels lie in a copy; where no folder is left, `__pycache__` beside them is a file, and there is no home.

    Permissions would not do: the tests may run as root.
    """
    package = tmp_path / "rtmc"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copytree(ROOT / "kernels", package / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    if not anywhere:
        (package / "kernels" / "__pycache__").write_text("")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, no folder")
    inside = str(blocked / "cache")
    env = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": inside, "HOME": inside, "XDG_CACHE_HOME": inside}
    done = python(NOTED, cwd=tmp_path, **env, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[1.75, 1.5, 1.0]", "[0, 0, 1]"]
    notes = [line for line in done.stderr.splitlines() if "NUMBA_CACHE_DIR" in line and "Warning" in line]
    assert len(notes) == 1, done.stderr
    assert inside in notes[0]
    assert ("is kept in" if anywhere else "compiles anew") in notes[0]


def test_a_cache_that_can_be_written_is_not_noted_and_is_read_again(tmp_path):
    code = ONE_CALL + "from rtmc.kernels import returns\n"
    code += "loops = [f.came_from_disk() for f in vars(returns).values() if hasattr(f, 'came_from_disk')]\n"
    code += "print({loop for loop in loops if loop is not None})"
    runs = [python(code, NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2)]
    assert all("NUMBA_CACHE_DIR" not in run.stderr for run in runs), runs[0].stderr
    assert [run.stdout.splitlines()[-1] for run in runs] == ["{False}", "{True}"]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda t: backend.check_tensor("a", [1], dtypes=torch.int64), TypeError, ["`a`", "list", "torch.Tensor"]),
        (
            lambda t: backend.check_tensor("a", t, dtypes=(torch.float32, torch.float64), shape=("S",)),
            ValueError,
            ["`a`", "int64 of shape (2, 3)", "float32 or float64 of shape (S,)"],
        ),
        (
            lambda t: backend.check_tensor("a", t, dtypes=torch.int64, shape=(2, 4)),
            ValueError,
            ["(2, 3)", "(2, 4)"],
        ),
        (
            lambda t: backend.check_tensor("a", t, dtypes=torch.int64, device=torch.device("meta")),
            ValueError,
            ["on cpu", "on meta"],
        ),
        (lambda t: backend.check_range("p", 1.5, 0.0, 1.0), ValueError, ["`p`", "1.5", "[0.0, 1.0]"]),
        (lambda t: backend.check_range("p", 0, 0.0, 1.0, low_open=True), ValueError, ["(0.0, 1.0]"]),
        (lambda t: backend.check_range("p", float("nan"), 0.0, 1.0), ValueError, ["nan"]),
        (lambda t: backend.check_range("p", t, 0.0, 1.0), TypeError, ["Tensor", "number"]),
        (lambda t: backend.check_offsets("o", torch.tensor([0, 3, 2]), 2), ValueError, ["`o`", "decrease"]),
        (lambda t: backend.check_offsets("o", torch.tensor([1, 3]), 3), ValueError, ["from 1 to 3", "0 to 3"]),
        (lambda t: backend.check_offsets("o", torch.tensor([0, 3]), 4), ValueError, ["from 0 to 3", "0 to 4"]),
        (
            lambda t: backend.check_offsets("o", torch.tensor([0, 3]), 4, "node"),
            ValueError,
            ["node numbers from 0 to 4", "the number of nodes"],
        ),
        (lambda t: backend.check_tensor("a", t.to_sparse(), dtypes=t.dtype), ValueError, ["sparse_coo", "to_dense"]),
        (lambda t: backend.check_tensor("a", t.float().to_sparse_csr(), dtypes=t.dtype), ValueError, ["sparse_csr"]),
        (lambda t: backend.check_integers("a", t.short()), ValueError, ["`a`", "int16", "int64 or int32"]),
        (lambda t: backend.check_integers("a", t, shape=(1, 3)), ValueError, ["`a`", "(2, 3)", "(1, 3)"]),
        (lambda t: backend.check_range("p", np.float32(1.5), 0, 1), ValueError, ["`p`", "1.5"]),
        (lambda t: backend.check_range("p", np.bool_(True), 0, 1), TypeError, ["`p`", "number"]),
        (lambda t: backend.check_range("p", 10**400, 0, math.inf), ValueError, ["`p`", "1329 bits", "float64"]),
        (lambda t: backend.choose("w", ["x"], ("x", "y")), ValueError, ["`w`", "['x']", "'x', 'y'"]),
        (lambda t: backend.choose("w", {"x"}, {"x": 1}), ValueError, ["`w`", "{'x'}"]),
        (lambda t: backend.choose("w", t, ("x",)), ValueError, ["`w`", "tensor", "'x'"]),
    ],
)
def test_checks_name_the_argument_what_came_and_what_is_wanted(call, error, words):
    with pytest.raises(error) as caught:
        call(torch.zeros(2, 3, dtype=torch.int64))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_checks_pass_what_fits():
    t = torch.zeros(2, 3, dtype=torch.int64)
    backend.check_tensor("a", t, dtypes=torch.int64, shape=("B", 3), device=t.device)
    assert backend.check_range("p", 1, 0.0, 1.0) == 1.0
    for number in (np.float32(0.5), np.float16(0.5), np.float64(0.5)):
        assert type(backend.check_range("p", number, 0.0, 1.0)) is float
    assert backend.check_range("p", np.int64(1), 0, 1) == backend.check_range("p", np.uint8(1), 0, 1) == 1.0
    assert backend.check_integers("a", t, shape=("B", 3)) is t
    assert backend.check_integers("a", t.int()).dtype == torch.int64
    assert torch.equal(backend.check_integers("a", t.int()), t)
    backend.choose("w", "x", ("x", "y"))
    backend.check_offsets("o", torch.tensor([0, 0, 4]), 4)


@pytest.mark.parametrize(("n", "wanted"), [(0, 1), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_next_power_of_2(n, wanted):
    assert backend.next_power_of_2(n) == wanted


def test_strided_and_cast_arrays():
    t = torch.arange(12.0).reshape(3, 4)
    assert backend.as_numpy(t.T).tolist() == t.T.tolist()
    assert backend.as_numpy(t[:, ::2], torch.float64).flags.c_contiguous
    assert str(backend.as_numpy(t.bfloat16(), torch.float32).dtype) == "float32"


def test_fresh_memory_is_poisoned_here():
    assert torch.empty(3).isnan().all()
    assert torch.ones(2).new_empty(2).isnan().all()
    assert (torch.empty_like(torch.ones(2).long()) < -(2**60)).all()
