"""`import rtmc` is light, and its names resolve lazily."""

import subprocess
import sys

import pytest

import rtmc

HEAVY = ("torch", "triton", "numba", "transformers", "peft", "gymnasium")


def _modules_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_costs_nothing():
    assert _modules_after("import rtmc; dir(rtmc); rtmc.__version__") == set()


def test_the_light_rooms_stay_light():
    assert _modules_after("import rtmc; rtmc.Rollout; rtmc.read_rollouts; rtmc.register_signature") == set()


def test_the_test_sees_a_heavy_import():
    assert "torch" in _modules_after("import rtmc; rtmc.StepTable")


def test_every_public_name_resolves_and_is_listed():
    for name in rtmc.__all__:
        assert name in dir(rtmc)
        assert getattr(rtmc, name) is not None
    assert set(rtmc._HOMES) | {"__version__"} == set(rtmc.__all__)


def test_no_module_takes_the_place_of_a_public_name():
    code = (
        "import importlib, pkgutil, rtmc\n"
        "for m in pkgutil.iter_modules(rtmc.__path__):\n"
        "    assert m.name not in rtmc.__all__, m.name"
    )
    assert _modules_after(code) == set()


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'advantage'"):
        rtmc.advantage  # noqa: B018 - the look-up itself must raise
