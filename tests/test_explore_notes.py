"""What exploration tells its user: warnings of `explore`, notes and metrics of a run, what it says can be done next.

Where a line names a remedy, the remedy is tried.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rtmc
from rtmc.cli import main
from rtmc.train import config as configuration
from rtmc.train.build import build
from rtmc.train.credit import credit_forest
from rtmc.train.explore import explore
from rtmc.train.forks import Worlds
from rtmc.train.turn_forest import PROMPT, Forest
from tests import tiny
from tests.explore_world import messenger, search_qa
from tests.test_explore_train import SEARCH

TASKS = range(6)


class Shut(gymnasium.Wrapper):
    """Search QA that cannot be reset."""

    def reset(self, **given: Any) -> Any:
        raise RuntimeError("closed today")


def heard(call: Callable[[], Forest]) -> tuple[Forest, list[str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        forest = call()
    return forest, [str(one.message) for one in found if one.category is UserWarning]


def grown(**options: Any) -> tuple[Forest, list[str]]:
    given = {"budget": 40, "chains": 2, **options}
    return heard(lambda: explore(messenger(), search_qa, given.pop("tasks", 0), **given))


def falls(forest: Forest, eps: float) -> list[float]:
    """log rho of every turn, from the scores around it."""
    return [math.log((n.after.score + eps) / (n.before.score + eps)) for n in forest.nodes]


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize("eps", [0.05, 1e-3])
def test_the_threshold_that_no_turn_fell_below(eps: float) -> None:
    forest, (told,) = grown(threshold=-30.0, eps_smooth=eps)
    assert forest.candidates == []
    lowest = min(falls(forest, eps))
    assert number(told, r"no turn fell below `threshold` = (\S+) ") == -30
    assert number(told, r"the lowest log rho was (\S+)\)") == pytest.approx(lowest, rel=0.06)
    assert number(told, r"lower `eps_smooth` \(now (\S+)\)") == eps
    assert "or raise `threshold`" in told
    # Both remedies work: a threshold above the lowest, and a smaller eps with one that is below it.
    raised, nothing = grown(threshold=lowest / 2, eps_smooth=eps)
    assert raised.candidates
    assert nothing == []
    sharper = min(falls(forest, eps / 1000))
    assert sharper < lowest
    lowered, nothing = grown(threshold=(sharper + lowest) / 2, eps_smooth=eps / 1000)
    assert lowered.candidates
    assert nothing == []


@pytest.mark.parametrize("rule", ["random", "entropy", "none"])
def test_other_rules_have_no_threshold(rule: str) -> None:
    assert grown(threshold=-30.0, rule=rule)[1] == []


def test_turns_without_scores_are_told_apart_from_turns_that_did_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(histories: Sequence[Any], references: Sequence[Any]) -> list[float]:
        return [math.nan] * len(histories)

    agent = messenger()
    monkeypatch.setattr(agent, "score", blind)
    forest, (told,) = heard(lambda: explore(agent, search_qa, 0, budget=40, chains=2))
    assert told == "no turn has a score of the reference answer before and after it, so that nothing branched"
    assert forest.candidates == []


def test_tasks_of_which_none_can_start() -> None:
    forest, (told,) = heard(lambda: explore(messenger(), lambda: Shut(search_qa()), [0, 1, 2], budget=40))
    assert told == "none of 3 tasks could start, so that nothing was played: reset: RuntimeError: closed today"
    assert [path.start for path in forest.paths] == [PROMPT] * 3
    # The table has no row, and all that a tree method reads.
    for tree in ("prompt", "chain"):
        table = forest.table(tree)
        assert (len(table), table.n_rollouts) == (0, 3)
        for method in ("treehca", "tree_grpo", "at2po"):
            assert rtmc.advantages(table, method).shape == (0,)
        assert len(rtmc.explore.select(table, 3).row) == 0
    assert forest.episodes()[0][0].turns == []
    assert all(rollout.error and not rollout.steps for rollout in forest.rollouts())


def test_a_task_that_starts_is_enough_for_silence_about_the_start() -> None:
    class Fickle(gymnasium.Wrapper):
        def reset(self, *, seed: int | None = None, **given: Any) -> Any:
            if seed == 1:
                raise RuntimeError("closed today")
            return self.env.reset(seed=seed, **given)

    forest, told = heard(
        lambda: explore(messenger(), lambda: Fickle(search_qa()), [0, 1], budget=40, chains=2, threshold=math.inf)
    )
    assert told == []
    assert [root.error is None for root in forest.roots] == [True, False]


def test_no_task_is_nothing_to_tell_of() -> None:
    forest, told = heard(lambda: explore(messenger(), search_qa, [], budget=40))
    assert told == []
    assert len(forest.table()) == len(forest.rollouts()) == 0
    assert rtmc.advantages(forest.table(), "treehca").shape == (0,)


def test_the_budget_that_chains_took_is_told_from_half_the_tasks_on() -> None:
    alone, _ = grown(tasks=TASKS, budget=0)
    took = [sum(alone.nodes[node].move.tokens for node in alone.rows([task])) for task in TASKS]
    assert len(set(took)) > 2
    said = set()
    for budget in (*sorted(set(took)), max(took) + 1):
        spent = [tokens for tokens in took if tokens >= budget]
        forest, told = grown(tasks=TASKS, budget=budget, threshold=math.inf)
        assert [root.chain_tokens for root in forest.roots] == took
        told = [line for line in told if "`budget`" in line]
        assert len(told) == (2 * len(spent) >= len(took))
        said.add(len(told))
        if told:
            line = told[0]
            assert number(line, r"`budget` is (\d+) tokens a task") == budget
            assert number(line, r"`chains` = (\d+)") == 2
            between = f"{min(spent)} to {max(spent)}" if min(spent) < max(spent) else f"{spent[0]}"
            assert f"took {between} in {len(spent)} of {len(took)} tasks" in line
            assert "raise `budget`" in line
    assert said == {0, 1}
    assert grown(tasks=TASKS, budget=0)[1] == []  # who gives none asks for chains alone


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def search(tmp_path: Path, model_folder: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(SEARCH + f'[model]\nname = "{model_folder}"\n', encoding="utf-8")
    return str(path)


def trained(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


def run_of(config: str, folder: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> list[str]:
    """The lines that `rtmc train` prints."""
    capsys.readouterr()
    assert main(["train", config, "evaluation.tasks=1", *overrides, "--run", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_run_tells_once_that_nothing_fell_and_at_its_end(
    search: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run_of(search, tmp_path / "out", capsys, "explore.threshold=-30.0", "explore.budget_tokens=60")
    assert [entry["candidates"] for entry in trained(tmp_path / "out")] == [0, 0]
    assert [entry["unexplored"] for entry in trained(tmp_path / "out")] == [0, 0]
    (note,) = [line for line in told if "no turn fell below" in line and line.startswith("step ")]
    assert note.startswith("step 1: no turn fell below `explore.threshold` = -30 (the lowest log rho was -")
    assert note.endswith("lower `explore.eps_smooth` (now 0.05), or raise `explore.threshold`")
    (end,) = [line for line in told if line.startswith("No rollout branched in 2 steps: ")]
    assert "`explore.threshold` = -30" in end
    # What is named is a key of the configuration, and it is the remedy.
    told = run_of(search, tmp_path / "next", capsys, "explore.threshold=1.0", "explore.budget_tokens=60")
    assert sum(entry["candidates"] for entry in trained(tmp_path / "next")) > 0
    assert not [line for line in told if "branched" in line]


def test_a_run_tells_that_chains_take_its_budget(
    search: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run_of(search, tmp_path / "out", capsys, "explore.budget_tokens=1")
    assert [entry["unexplored"] for entry in trained(tmp_path / "out")] == [1, 1]
    (note,) = [line for line in told if line.startswith("step ") and "`explore.budget_tokens` is" in line]
    assert re.match(
        r"step 1: `explore\.budget_tokens` is 1 tokens a task; the first chains \(`group_size` = 2\) took [\d to]+ in "
        r"2 of 2 tasks, which were explored no further: raise `explore\.budget_tokens`$",
        note,
    )
    (end,) = [line for line in told if line.startswith("No rollout branched in 2 steps: ")]
    assert "took `explore.budget_tokens` = 1; raise it, or lower `group_size` (now 2)." in end


def test_a_run_of_which_no_task_starts_ends_and_says_why(
    search: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = Worlds.reset

    def closed(self: Worlds, task: Any) -> Any:
        if task != 0:  # 0 is the trial before a run
            raise RuntimeError("closed today")
        return reset(self, task)

    monkeypatch.setattr(Worlds, "reset", closed)
    told = run_of(search, tmp_path / "out", capsys)
    (note,) = [line for line in told if "could start" in line]
    assert note == "step 1: none of 2 tasks could start, so that nothing was played: reset: RuntimeError: closed today"
    for entry in trained(tmp_path / "out"):
        assert (entry["errors"], entry["turns"], entry["unexplored"], entry["sampled_tokens"]) == (2, 0, 0, 0)
        assert "updates" not in entry


def test_unexplored_is_the_share_of_tasks_whose_chains_took_the_budget(search: str) -> None:
    parts = build(configuration.load(search, ["explore.budget_tokens=30"]), lambda text: None)
    try:
        forest = parts.explorer.run([3, 4, 5, 6, 7], (1,))
        own = [
            sum(forest.nodes[n].move.tokens for p in root.rollouts[:2] for n in forest.paths[p].nodes)
            for root in forest.roots
        ]
        shares = set()
        for budget in (1, *sorted(set(own)), max(own) + 1):
            config = configuration.load(search, [f"explore.budget_tokens={budget}"])
            share = credit_forest(config, forest).metrics["unexplored"]
            assert share == np.mean([tokens >= budget for tokens in own])
            shares.add(share)
        assert {0.0, 1.0} < shares
    finally:
        parts.close()


@pytest.mark.parametrize(
    ("overrides", "split"),
    [
        ([], "its default split"),
        (['env.kwargs={split="train", max_turns=2}'], "'train'"),
        (['env.kwargs={split="valid", max_turns=2}'], None),
        (['evaluation.kwargs={split="valid"}'], None),
        (['env.id="rtmc/Household-v0"', 'env.kwargs={split="tiny"}', "act=none", "explore.budget_tokens=60"], None),
        # Its default split is the one of training, and there is none called "valid" to advise.
        (['env.id="rtmc/Household-v0"', "env.kwargs={}", "act=none"], None),
    ],
    ids=["default", "named", "valid", "advised", "household", "household-train"],
)
def test_the_line_about_the_split(search: str, overrides: list[str], split: str | None) -> None:
    told: list[str] = []
    parts = build(configuration.load(search, overrides), told.append)
    parts.close()
    lines = [line for line in told if "drawn from the split" in line]
    assert len(lines) == (split is not None)
    if split is None:
        return
    assert f"({split}; none of them is trained on)" in lines[0]
    (advice,) = re.findall(r"`(.+?)`", lines[0])
    assert advice == 'evaluation.kwargs={split="valid"}'
    parts = build(configuration.load(search, [*overrides, advice]), told.append)
    try:
        assert len([line for line in told if "drawn from the split" in line]) == 1
        assert all(re.search(r"Question: ", text) for text in parts.held_out_texts)
        ((episode,),) = parts.held_out.play([3], 1, parts.explorer.agent.acting, (0,))
        assert episode.rollout.task_id.startswith("valid/")
        ((episode,),) = parts.collector.play([3], 1, parts.explorer.agent.acting, (0,))
        assert episode.rollout.task_id.startswith("train/")
    finally:
        parts.close()


def test_what_a_finished_run_names_as_next_works(
    search: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a run"
    (line,) = [one for one in run_of(search, run, capsys, "steps=1") if one.startswith("Next: ")]
    commands = re.findall(r"`(.+?)`", line)
    assert len(commands) == 2
    words = [shlex.split(command)[1:] for command in commands]
    assert words[0] == ["train", "--resume", str(run), "steps=2"]
    assert words[1] == ["play", "search-qa", "--model", str(run)]
    for command in words:
        assert main(command) == 0
    assert len(trained(run)) == 2
    assert "after step 2, task train/" in capsys.readouterr().out


def test_the_next_line_of_the_demonstration_names_a_rule_of_the_makefile(tmp_path: Path) -> None:
    from rtmc.train.run import _next

    makefile = (Path(__file__).resolve().parents[1] / "Makefile").read_text()
    for method, other in (("rtmc", "grpo"), ("grpo", "rtmc")):
        told = _next(configuration.load("demo", [f"method={method}"]), tmp_path)
        assert f"(`make demo METHOD={other}`)" in told
        assert "rtmc play household --model" in told
    assert re.search(r"^demo:", makefile, re.MULTILINE)
    assert "METHOD" in makefile
    changed = _next(configuration.load("demo", ["steps=3"]), tmp_path)
    assert "make demo" not in changed
    assert "steps=6`" in changed


def test_free_text_is_never_called_shared(search: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every turn of free text is sampled by the model itself, in trees as in plain rollouts."""
    run_of(search, tmp_path / "trees", capsys, "steps=1")
    run_of(search, tmp_path / "plain", capsys, "steps=1", "explore=none", "method=rtmc", "credit=none")
    for name in ("trees", "plain"):
        assert [entry["turns_shared"] for entry in trained(tmp_path / name)] == [0]
