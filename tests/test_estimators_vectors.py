"""Every stored case is checked: no file, and no output of a file, that the tests do not read."""

import json
from pathlib import Path

import pytest

from tests.estimator_cases import Outputs, vector_cases

TESTS = Path(__file__).parent
# Losses and divergences are no estimators: tests/test_policy_loss.py, test_token_weights.py and their neighbours read
# these outputs by name.
LOSSES = {
    "aepo_loss": ["loss"],
    "at2po_gspo_turn": ["loss", "rest"],
    "verl_agg_loss": [
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ],
    "verl_kl": ["kl", "abs", "mse", "low_var_kl"],
    "verl_policy_loss": ["ppo_token_mean", "ppo_metrics", "gspo", "gspo_metrics"],
}


def test_every_file_is_read(shared):
    others = (path for path in TESTS.glob("test_*.py") if path != Path(__file__))
    sources = "".join(path.read_text(encoding="utf-8") for path in others)
    files = {path.stem for path in (shared / "vectors").glob("*.json")}
    assert {name for name in files - set(LOSSES) if f'vector_cases(shared, "{name}")' not in sources} == set()
    assert {name for name in LOSSES if f'"{name}' not in sources} == set()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_no_other_output(name, shared):
    for case in json.loads((shared / "vectors" / f"{name}.json").read_text())["cases"]:
        assert set(case["outputs"]) <= set(LOSSES[name])


def test_an_unread_output_is_found(tmp_path):
    (tmp_path / "vectors").mkdir()
    path = tmp_path / "vectors" / "x.json"
    path.write_text(json.dumps({"cases": [{"inputs": {"a": 1}, "outputs": {"b": 2, "new": 3}}]}))
    cases = vector_cases(tmp_path, "x")
    given, wanted = next(cases)
    assert (given, wanted["b"]) == ({"a": 1}, 2)
    with pytest.raises(AssertionError, match=r"x\.json, case 0: the test does not read {'new'}"):
        next(cases)
    path.write_text('{"cases": []}')
    with pytest.raises(AssertionError, match="has no cases"):
        next(vector_cases(tmp_path, "x"))


def test_asking_whether_an_output_is_there_is_no_reading():
    wanted = Outputs({"b": 2})
    assert "b" in wanted
    assert wanted.unread == {"b"}
    assert dict(wanted) == {"b": 2}
    assert wanted.unread == set()
