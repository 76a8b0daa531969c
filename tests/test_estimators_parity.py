"""`parity`: what each engine gives for outcomes 1 and 0 and for a group of one, by hand, and what it lets a caller set.

`python -m tests.test_estimators_parity` prints the tables that docs/estimators.md has of this.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from pathlib import Path

import pytest
import torch

import rtmc
from rtmc import EstimatorError
from rtmc.methods.options import choice, number
from rtmc.methods.registry import describe
from tests.degenerate_cells import ALONE, Member, table_of
from tests.estimator_cases import INFO

PAGE = Path(__file__).resolve().parents[1] / "docs" / "estimators.md"
# One step a rollout, in states that do not recur, so that what compares steps of a state stays out of the numbers.
TWO = [Member([("s", "a")], 1.0), Member([("t", "b")], 0.0)]
ONE = [Member([("s", "a")], 1.0)]

_EPS = 1e-6
_R2, _Z = 0.5**0.5, 0.5 / (0.5**0.5 + _EPS)  # 0.5 is the distance from the mean, sqrt(1/2) the sample deviation
_RAW = 1 / (1 + _EPS)
# (method, parity) -> advantages of outcomes 1 and 0, and of a lone outcome 1.
BY_HAND: dict[tuple[str, str | None], tuple[float, float, float]] = {
    ("grpo", None): (_Z, -_Z, 0),
    ("grpo", "verl"): (_Z, -_Z, _RAW),
    ("grpo", "verl_agent"): (_Z, -_Z, _RAW),
    ("grpo", "skyrl"): (_Z, -_Z, _RAW),
    ("grpo", "rllm"): (0.5 / (0.5 + _EPS), -0.5 / (0.5 + _EPS), _RAW),
    ("grpo", "trl"): (0.5 / (_R2 + 1e-4), -0.5 / (_R2 + 1e-4), 0),
    ("grpo", "roll"): (_Z, -_Z, 0),
    ("grpo", "openrlhf"): (0.5 / (_R2 + 1e-9), -0.5 / (_R2 + 1e-9), 0),
    ("grpo", "prime_rl"): (0.5, -0.5, 0),
    ("grpo", "tinker"): (0.5, -0.5, 0),
    ("dr_grpo", None): (0.5, -0.5, 0),
    ("dr_grpo", "verl"): (0.5, -0.5, 1),
    ("rloo", None): (1, -1, 0),
    ("rloo", "verl"): (1, -1, 1),
    ("gae", None): (0.75, -0.25, 0.75),  # value 0.25
    ("gae", "verl"): (0.5 / (0.5 + 1e-8) ** 0.5, -0.5 / (0.5 + 1e-8) ** 0.5, 0),
    ("gigpo", None): (0.5, -0.5, 0),
    ("gigpo", "verl_agent"): (0.5, -0.5, 1),
    ("hgpo", None): (_Z, -_Z, 0),
    ("hgpo", "verl_agent"): (_Z * _RAW, -_Z * _RAW, _RAW * _RAW),  # the sum of weights, 1, has an eps too
    ("igpo", None): (_Z, -_Z, 0),
    ("igpo", "verl_agent"): (_Z, -_Z, _RAW),
    ("igrpo", None): (_Z, -_Z, 0),
    ("igrpo", "verl_agent"): (_Z, -_Z, _RAW),
    ("istar", None): (1, -1, 0),
    ("istar", "verl_agent"): (1, -1, 1.25),  # prm_reward 0.25
    ("tree_grpo", None): (_Z, -_Z, 0),
    ("tree_grpo", "verl"): (_Z + _RAW, -_Z, 2 * _RAW),  # each rollout is a tree of its own, a single leaf
    ("treehca", None): (0, 0, 0),
    ("treehca", "dev_fork"): (_Z, -_Z, _RAW),
}


def engines() -> list[tuple[str, str | None]]:
    """Every (method, parity) that the register knows, None first."""
    return [
        (name, parity)
        for name, info in INFO.items()
        if "parity" in info.options
        for parity in (None, *re.findall(r"'([^']+)'", info.wanted["parity"]))
    ]


@pytest.mark.parametrize(("method", "parity"), engines())
def test_the_numbers_of_the_page(method, parity):
    assert (method, parity) in BY_HAND, f"BY_HAND has no numbers for {method}, parity={parity!r}"
    found = [rtmc.advantages(table_of(method, members), method, parity=parity).tolist() for members in (TWO, ONE)]
    # hgpo's engine computes in single precision.
    tolerance = 1e-7 if (method, parity) == ("hgpo", "verl_agent") else 1e-12
    assert [*found[0], *found[1]] == pytest.approx(BY_HAND[method, parity], abs=tolerance)


def test_the_page_has_the_tables():
    assert set(BY_HAND) == set(engines())
    page = PAGE.read_text(encoding="utf-8")
    for rendered in (render(), render_needs()):
        assert rendered in page, "write the output of `python -m tests.test_estimators_parity` into the page"


def test_what_parity_sets_may_be_said_again():
    table = table_of("grpo", [*TWO, Member([("u", "a")], 0.25)])
    for parity, info in INFO["grpo"].engines.items():
        said = {name: values[0] for name, values in info.items()}
        alone = rtmc.advantages(table, "grpo", parity=parity)
        assert torch.equal(rtmc.advantages(table, "grpo", parity=parity, **said), alone)
    assert rtmc.advantages(table, "grpo", parity="rllm").tolist() != rtmc.advantages(table, "grpo").tolist()
    whitened = table_of("gae", ALONE.members)
    assert torch.equal(
        rtmc.advantages(whitened, "gae", parity="verl", whiten=True), rtmc.advantages(whitened, "gae", parity="verl")
    )


@pytest.mark.parametrize(("method", "parity"), [case for case in engines() if case[1] in INFO[case[0]].engines])
def test_a_default_that_is_given_is_no_default(method, parity):
    """Each default that the engine does not know is refused when it is given, and replaced when it is not."""
    table = table_of(method, TWO)
    rtmc.advantages(table, method, parity=parity)
    for name, values in INFO[method].engines[parity].items():
        default = INFO[method].options[name]
        if default not in values:
            with pytest.raises(EstimatorError, match=f"^estimator `{method}`: parity={parity!r} has `{name}` "):
                rtmc.advantages(table, method, parity=parity, **{name: default})


@pytest.fixture
def registered(monkeypatch):
    from rtmc.methods import registry

    monkeypatch.setattr(registry, "_registered", dict(registry._load()))


@pytest.mark.usefixtures("registered")
def test_a_users_engines():
    seen = []

    def method(table, *, gain, parity):
        seen.append(gain)
        return table.reward

    options = {"gain": number(1.0), "parity": choice(None, ("theirs",))}
    rtmc.register_estimator("mine", method, options=options, engines={"theirs": {"gain": (2.0, 3.0)}})
    table = table_of("grpo", ONE)
    for given in ({}, {"parity": "theirs"}, {"parity": "theirs", "gain": 3}, {"gain": 5.0}):
        rtmc.estimate(table, "mine", **given)
    assert seen == [1.0, 2.0, 3, 5.0]
    with pytest.raises(EstimatorError, match=r"parity='theirs' has `gain` 2.0 or 3.0, got 1.0; leave `gain` out"):
        rtmc.estimate(table, "mine", parity="theirs", gain=1.0)
    assert "parity='theirs' has gain 2.0 or 3.0." in describe("mine")
    assert method.__doc__ is None
    rtmc.register_estimator("bare", functools.partial(method, gain=1.0, parity=None), options={})
    assert rtmc.estimate(table, "bare").advantage.tolist() == [0.0]
    for engines_, message in [
        ({"theirs": {"gian": (1.0,)}}, "unknown option 'gian'; did you mean `gain`"),
        ({"others": {"gain": (1.0,)}}, "gives parity='others' the `gain`"),
        ({"theirs": {"gain": ("x",)}}, r"gives parity='theirs' the `gain` \('x',\)"),
    ]:
        with pytest.raises(EstimatorError, match=message):
            rtmc.register_estimator("other", method, options=options, engines=engines_)


@pytest.mark.parametrize("method", INFO)
def test_help_shows_formula_defaults_and_source(method):
    """What `help` of the function shows is what `rtmc estimators NAME` prints."""
    from rtmc.methods import registry

    info, text = INFO[method], describe(method)
    function = registry._load()[method].function
    assert inspect.getdoc(function) == text
    for option, default in info.options.items():
        assert re.search(rf"\b{option}={re.escape(repr(default))}[,.]", text.replace("\n ", "")), option
        assert re.search(rf"^  {option} +\S", text, re.MULTILINE), option
    words = " ".join(text.split())
    assert f"Source: {info.source}." in words
    assert f"Needs: {', '.join(info.needs) or 'nothing'} beyond" in words
    assert re.search(r"\bA(_\w+|\(\w+(, \w+)?\))? += ", text), "no formula of the advantage"
    head = inspect.cleandoc(sys.modules[function.__module__].__doc__)
    assert text.endswith(f"The head of {function.__module__}:\n\n{head}")
    assert max(map(len, text.splitlines())) <= 120


def test_describing_what_is_unknown():
    with pytest.raises(EstimatorError, match="unknown estimator 'Rtmc'; did you mean `rtmc`"):
        describe("Rtmc")


def _number(value: float) -> str:
    return f"{value:.5f}" if value else "0"


def render() -> str:
    """The table of engines of docs/estimators.md, markdown."""
    lines = ["| method | `parity` | outcome 1 | outcome 0 | group of one |", "| --- | --- | --- | --- | --- |"]
    for method, parity in engines():
        name = f"`{parity}`" if parity else "(default)"
        lines.append(f"| `{method}` | {name} | " + " | ".join(map(_number, BY_HAND[method, parity])) + " |")
    return "\n".join(lines) + "\n"


def render_needs() -> str:
    """Which method reads what beyond outcomes, markdown."""
    methods: dict[tuple[str, ...], list[str]] = {}
    for name, info in sorted(INFO.items()):
        methods.setdefault(info.needs, []).append(f"`{name}`")
    lines = ["| reads beyond the outcomes | methods |", "| --- | --- |"]
    for needs, names in sorted(methods.items(), key=lambda item: (len(item[0]), item[0])):
        lines.append(f"| {', '.join(f'`{need}`' for need in needs) or 'nothing'} | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), render_needs(), sep="\n", end="")
