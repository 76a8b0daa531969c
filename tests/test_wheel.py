"""What a user of the wheel gets: the four folders as one package, working far from any checkout.

The wheel is built from a copy of the tree and installed, without its dependencies, into an empty environment that
sees those of the environment the tests run in. No network is used.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("kernels", "gymenvs", "train")
LEFT_BEHIND = (".git", ".venv", "venv", "runs", "build", "dist", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis")
NO_NETWORK = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

pytestmark = pytest.mark.slow

# The numbers are worked by hand. Three rollouts: key, open (wins); key, kick (fails); sing (fails); gamma .99, n = 2,
# P = 1/3. room: Q(key) = .99 / 2, V' = (.99 + 2/3) / 5. door: Q(open) = 1, V' = (1 + 2/3) / 4.
ESTIMATE = """
import rtmc, torch
rows = [
    {"group": 0, "rollout": r, "index": i, "state": s, "action": a, "outcome": o}
    for r, i, s, a, o in [
        (0, 0, "room", "key", 1.0), (0, 1, "door", "open", 1.0),
        (1, 0, "room", "key", 0.0), (1, 1, "door", "kick", 0.0),
        (2, 0, "room", "sing", 0.0),
    ]
]
got = rtmc.advantages(rtmc.StepTable.from_rows(rows, dtype=torch.float64), "rtmc", gamma=0.99, prior_visits=2)
room, door = (0.99 + 2 / 3) / 5, (1 + 2 / 3) / 4
torch.testing.assert_close(got.tolist(), [0.495 - room, 1 - door, 0.495 - room, -door, -room], rtol=0, atol=1e-12)
print(rtmc.__file__)
"""

# Triton as on a system it is not published for: no finder knows it.
WITHOUT_TRITON = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "triton" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    tree = tmp_path_factory.mktemp("source") / "rtmc"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **NO_NETWORK})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """A new environment with the wheel in it; returns its folder of scripts."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    command = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install", "--no-deps", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **NO_NETWORK})
    assert done.returncode == 0, done.stdout + done.stderr
    (packages,) = home.glob("lib/python*/site-packages")
    # A line of a .pth file puts the folder on the path but runs none of the .pth files inside it, so an editable
    # install of this checkout stays out of sight.
    paths = {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(paths)) + "\n")
    return scripts


def run(site: Path, folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the environment in `folder`, with nothing of this checkout on the path."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RTMC_BACKEND", "TRITON_INTERPRET")}
    command = [str(site / words[0]), *words[1:]]
    return subprocess.run(command, cwd=folder, env={**kept, **more}, capture_output=True, text=True, timeout=300)


def test_it_holds_the_rooms_as_real_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.infolist()
    names = {entry.filename for entry in entries}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name.split("/")[0] for name in names} == {"rtmc", f"rtmc-{project['version']}.dist-info"}
    assert not [e.filename for e in entries if stat.S_ISLNK(e.external_attr >> 16)]
    wanted = set()
    for room in ("rtmc", *ROOMS):
        files = [file for file in (ROOT / room).rglob("*.py") if not any(p.is_symlink() for p in file.parents)]
        wanted |= {("" if room == "rtmc" else "rtmc/") + file.relative_to(ROOT).as_posix() for file in files}
    assert {name for name in names if name.endswith(".py")} == wanted
    assert "rtmc/kernels/__init__.py" not in names


def test_it_holds_what_is_no_code(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    configs = {f"rtmc/train/configs/{file.name}" for file in (ROOT / "train" / "configs").glob("*.toml")}
    assert "rtmc/train/configs/demo.toml" in configs
    assert configs | {"rtmc/py.typed"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    data = {name for name in names if not name.endswith(".py") and ".dist-info/" not in name}
    present = {
        ("" if room == "rtmc" else "rtmc/") + file.relative_to(ROOT).as_posix()
        for room in ("rtmc", *ROOMS)
        for file in (ROOT / room).rglob("*")
        if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts
        if not any(p.is_symlink() for p in file.parents)
    }
    assert data == present


def test_the_doctor_finds_the_installed_package_working(site, tmp_path):
    done = run(site, tmp_path, "rtmc", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    states = {finding["name"]: finding["state"] for finding in document["findings"]}
    assert document["works"] is True
    assert [name for name, state in states.items() if state == "broken"] == []


def test_it_estimates_outside_the_checkout(site, tmp_path):
    done = run(site, tmp_path, "python", "-c", ESTIMATE)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(site.parent)
    listed = run(site, tmp_path, "rtmc", "estimators")
    assert listed.returncode == 0, listed.stderr
    assert "arXiv 2604.11037" in listed.stdout


def test_its_environments_work_alone(site, tmp_path):
    pytest.importorskip("gymnasium", reason="environments need the extra `envs`")
    done = run(site, tmp_path, "rtmc", "envs", "--json")
    assert done.returncode == 0, done.stderr
    assert "rtmc/Household-v0" in [record["id"] for record in json.loads(done.stdout)]


def test_benchmarks_say_they_need_a_checkout(site, tmp_path):
    done = run(site, tmp_path, "rtmc", "bench", "credit")
    assert (done.returncode, done.stdout) == (2, "")
    assert "checkout" in done.stderr


def test_without_triton_the_cpu_estimators_work(site, tmp_path):
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(WITHOUT_TRITON)
    hook = {"PYTHONPATH": str(tmp_path / "hook")}
    absent = run(site, tmp_path, "python", "-c", "import triton", **hook)
    assert "No module named 'triton'" in absent.stderr
    done = run(site, tmp_path, "python", "-c", ESTIMATE, **hook)
    assert done.returncode == 0, done.stderr
    doctor = run(site, tmp_path, "rtmc", "doctor", "--json", **hook)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    states = {finding["name"]: finding["state"] for finding in json.loads(doctor.stdout)["findings"]}
    assert states["triton"] == states["triton compiler"] == "missing"
