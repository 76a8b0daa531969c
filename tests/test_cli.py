"""The command line: what it prints, where, with which status; and that asking for help costs nothing."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rtmc.cli
from rtmc.cli import COMMANDS, main
from rtmc.cli.command import Command, print_json
from rtmc.cli.explain import EXTRA_OF
from rtmc.cli.training import split_words
from rtmc.errors import TableError

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "triton", "numba", "transformers", "peft", "gymnasium")


def run(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rtmc", *words],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=120,
    )


def one_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.fixture
def command(monkeypatch):
    """Put a command `probe` in place whose work is the given function."""

    def put(work):
        monkeypatch.setitem(COMMANDS, "probe", Command("probe", "a probe", lambda parser: None, lambda a: work()))

    return put


# --- help ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_lists_every_command(words, capsys):
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", out, re.M)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: rtmc {name}")
    assert err == ""


def test_version_is_the_project_s(capsys):
    assert main(["--version"]) == 0
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"rtmc {wanted}\n"


def loaded_by(code: str) -> set[str]:
    code += f"; import sys; print('loaded:', *(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_loads_nothing_heavy():
    assert loaded_by("from rtmc.cli import main; main(['--help']); main(['train', '--help'])") == set()


def test_the_check_for_heavy_modules_can_fail():
    assert loaded_by("import numba") >= {"numba"}


# --- bad words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trian"], ["unknown command 'trian'", "`train`"]),
        (["--versoin"], ["unknown option '--versoin'", "`--version`"]),
        (["doctor", "--jsn"], ["rtmc doctor: unknown option '--jsn'", "`--json`"]),
        (["doctor", "--js"], ["unknown option '--js'"]),  # abbreviations would change meaning as options come
        (["doctor", "now"], ["unexpected word 'now'"]),
        (["train"], ["rtmc train: name a configuration", "--resume RUN"]),
        (["train", "demo", "seed=1", "fast"], ["unexpected word 'fast'", "key=value"]),
        (["train", "demo", "--ressume", "x"], ["unknown option '--ressume'", "`--resume`"]),
        (["evaluate"], ["rtmc evaluate: "]),
        (["evaluate", "tasks=3"], ["name the folder of a run first"]),
        (["play", "houshold"], ["unknown world 'houshold'", "`household`"]),
        (["play", "household", "--seed", "one"], ["--seed", "'one'"]),
        (["bench", "credits"], ["unknown benchmark 'credits'", "`credit`"]),
    ],
)
def test_bad_words_cost_one_line_and_status_2(words, parts, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    line = one_line(err)
    assert line.startswith("rtmc")
    for part in parts:
        assert part in line


def test_options_may_stand_between_settings():
    arguments = COMMANDS["train"].parse(["demo", "a=1", "--run", "here", "b.c=2", "--json"])
    assert arguments.words == ["demo", "a=1", "b.c=2"]
    assert (arguments.run, arguments.resume, arguments.json) == ("here", None, True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], (None, [])),
        (["demo"], ("demo", [])),
        (["demo", "a=1"], ("demo", ["a=1"])),
        (["a=1", "b.c=x=y"], (None, ["a=1", "b.c=x=y"])),
        (["./a=b.toml", "a="], ("./a=b.toml", ["a="])),
    ],
)
def test_a_setting_is_told_from_a_path(words, wanted):
    assert split_words(words, "CONFIG") == wanted


# --- errors of the work ------------------------------------------------------------------------------------


def fail(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TableError("row 3,\n  column `state`"), "rtmc probe: row 3, column `state`"),
        (ValueError("`gamma`: got 2"), "rtmc probe: `gamma`: got 2"),
        (
            FileNotFoundError(2, "No such file or directory", "a.toml"),
            "rtmc probe: a.toml: No such file or directory",
        ),
        (OSError(28, "No space left on device"), "rtmc probe: No space left on device; free some space"),
        (RuntimeError("RTMC_BACKEND=triton was asked for"), "rtmc probe: RTMC_BACKEND=triton was asked for"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."), "rtmc probe: CUDA out of memory."),
        (ModuleNotFoundError("x", name="peft.tuners"), "rtmc probe: the package `peft` is not installed: "),
    ],
)
def test_an_error_of_the_input_is_one_line(error, line, command, capsys, monkeypatch):
    monkeypatch.delenv("RTMC_DEBUG", raising=False)
    command(fail(error))
    assert main(["probe"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert one_line(err).startswith(line)


def test_a_missing_package_names_its_extra(command, capsys):
    command(fail(ModuleNotFoundError("No module named 'transformers'", name="transformers")))
    assert main(["probe"]) == 2
    assert "pip install 'rtmc[train]'" in one_line(capsys.readouterr().err)


def test_debug_shows_the_traceback_too(command, capsys, monkeypatch):
    monkeypatch.setenv("RTMC_DEBUG", "1")
    command(fail(TableError("row 3")))
    assert main(["probe"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1] == "rtmc probe: row 3"


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), ModuleNotFoundError("x", name="rtmc.nowhere")])
def test_a_fault_of_the_library_keeps_its_traceback(error, command):
    command(fail(error))
    with pytest.raises(type(error)):
        main(["probe"])


def test_ctrl_c_is_130(command, capsys):
    command(fail(KeyboardInterrupt()))
    assert main(["probe"]) == 130
    assert one_line(capsys.readouterr().err) == "rtmc: interrupted"


def test_a_full_disk_under_standard_output():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rtmc", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
    assert done.returncode == 2
    assert "No space left on device" in one_line(done.stderr)


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "rtmc", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_extras_agree_with_the_project_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def imported(lines: list[str]) -> list[str]:
        return [re.match(r"[\w-]+", line)[0].replace("-", "_") for line in lines]

    wanted = dict.fromkeys(imported(project["dependencies"]), "")
    del wanted["triton"]  # never imported unguarded
    for extra in ("envs", "train", "report", "tantivy", "dense"):
        wanted |= dict.fromkeys(imported(project["optional-dependencies"][extra]), extra)
    del wanted["rtmc"]  # one extra that contains another
    assert wanted == EXTRA_OF


# --- the commands ------------------------------------------------------------------------------------------


def test_print_json_is_one_strict_document(capsys):
    print_json({"a": float("nan"), "b": [1, float("-inf"), "é"], 3: (Path("x"), True, None)})
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document == {"a": None, "b": [1, None, "é"], "3": ["x", True, None]}


def test_train_hands_its_words_over(monkeypatch, capsys):
    pytest.importorskip("transformers", reason="training needs the extra `train`")
    import rtmc.train.run

    seen = []
    monkeypatch.setattr(rtmc.train.run, "train_command", lambda *given: seen.append(given) or 5)
    monkeypatch.setattr(rtmc.train.run, "evaluate_command", lambda *given: seen.append(given) or 6)
    assert main(["train", "demo", "method=grpo", "--run", "r", "seed=3"]) == 5
    assert main(["train", "--resume", "r", "steps=9", "--json"]) == 5
    assert main(["evaluate", "r", "tasks=2", "--json"]) == 6
    assert seen == [
        ("demo", ["method=grpo", "seed=3"], "r", None, False),
        (None, ["steps=9"], None, "r", True),
        ("r", ["tasks=2"], True),
    ]


def test_estimators_as_text_and_json(capsys):
    assert main(["estimators"]) == 0
    text = capsys.readouterr().out
    assert main(["estimators", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    names = [record["name"] for record in records]
    assert {"rtmc", "grpo", "grpo_step"} <= set(names)
    for name in names:
        assert name in text
    options = {record["name"]: record["options"] for record in records}
    assert options["rtmc"]["gamma"] == 0.99
    assert options["rtmc"]["prior_visits"] == 2


def test_envs_lists_what_gymnasium_holds(capsys):
    gymnasium = pytest.importorskip("gymnasium", reason="environments need the extra `envs`")
    assert main(["envs", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [r["id"] for r in records] == sorted(name for name in gymnasium.registry if name.startswith("rtmc/"))
    household = next(r for r in records if r["id"] == "rtmc/Household-v0")
    assert {"tiny", "train"} <= set(household["splits"])
    assert household["arguments"]["max_turns"] == "50"
    assert main(["envs"]) == 0
    assert "rtmc/Household-v0" in capsys.readouterr().out


def test_play_reads_piped_commands_and_numbers():
    pytest.importorskip("gymnasium", reason="environments need the extra `envs`")
    done = run("play", "household", "--split", "tiny", "--seed", "3", stdin="dance\n\n1\nq\nignored\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    listed = re.findall(r"^ +(\d+)  (.+)$", done.stdout, re.M)
    first = next(command for number, command in listed if number == "1")
    assert "> dance\nNothing happens." in done.stdout
    assert f"> {first}\n" in done.stdout
    assert "left after 2 turns, reward 0" in done.stdout
    assert "ignored" not in done.stdout


def test_play_can_be_won_by_its_expert():
    gymnasium = pytest.importorskip("gymnasium", reason="environments need the extra `envs`")
    env = gymnasium.make("rtmc.gymenvs:rtmc/Household-v0", split="tiny")
    env.reset(seed=3)
    plan = env.unwrapped.expert_plan()
    done = run("play", "household", "--split", "tiny", "--seed", "3", stdin="\n".join(plan) + "\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"success after {len(plan)} turns, reward 1\n")


def test_play_refuses_an_unknown_split():
    pytest.importorskip("gymnasium", reason="environments need the extra `envs`")
    done = run("play", "household", "--split", "tinny")
    assert (done.returncode, done.stdout) == (2, "")
    assert "tinny" in one_line(done.stderr)
    assert "tiny" in one_line(done.stderr).replace("tinny", "")


def test_bench_needs_a_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(rtmc.cli.tools, "checkout", lambda: tmp_path)
    assert main(["bench", "credit"]) == 2
    assert "checkout" in one_line(capsys.readouterr().err)


def test_bench_runs_the_checkout_s_script(monkeypatch, tmp_path, capfd):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "run.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    monkeypatch.setattr(rtmc.cli.tools, "checkout", lambda: tmp_path)
    assert main(["bench", "credit", "kernels", "--quick"]) == 3
    assert main(["bench", "credit", "--json"]) == 3
    assert capfd.readouterr().out == "['credit', 'kernels', '--quick']\n['credit', '--json']\n"
