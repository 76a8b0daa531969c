"""The configuration: what is read, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtmc.train import config


def _file(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_ones_are_valid_and_written_back_equal(tmp_path: Path) -> None:
    assert "demo" in config.shipped()
    for name in config.shipped():
        loaded = config.load(name)
        config.save(loaded, tmp_path / "again.toml")
        assert config.load(tmp_path / "again.toml") == loaded


@pytest.mark.parametrize("key", [k for k in config.known_keys() if k.count(".") == 1])
def test_every_key_can_be_overridden(tmp_path: Path, key: str) -> None:
    section, name = key.split(".")
    default = getattr(getattr(config.Config(), section), name)
    value = {
        bool: str(not default).lower(), int: "48", float: "0.125", list: '["look"]', dict: "{ a = 1 }", type(None): "3",
    }.get(type(default))  # fmt: skip
    words = {
        "model.name": "other", "model.dtype": "bfloat16", "model.device": "cpu", "lora.adapt": "all",
        "env.id": "x/Y-v0", "prompt.format": "chat", "prompt.cue": "?", "prompt.system": "s",
        "act.mode": "free", "credit.signatures": "text",
        "explore.rule": "entropy", "explore.answers": "max", "explore.wrapper": "({})",
        "loss.kl_mode": "k1", "loss.ratio": "turn", "loss.aggregate": "token-sum", "optim.decay": "linear",
        "budget.prefix_tokens": "2048", "act.max_new_tokens": "9",
    }  # fmt: skip
    text = words.get(key, value)
    changed = config.load(_file(tmp_path, "seed = 1\n"), [f"{key}={text}"])
    assert getattr(getattr(changed, section), name) != default
    assert changed.seed == 1


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("", [], "the file is empty"),
        ("seed = ", [], "not valid TOML"),
        ("steps = 1.5", [], r"`steps` is 1.5"),
        ('seed = "x"', [], r"`seed` is 'x'"),
        ("setps = 3", [], r"unknown key 'setps'; did you mean `steps`"),
        ("[optim]\nlearning_rate = 1", [], r"unknown key 'optim.learning_rate'"),
        ("[optim]\nlr = -1.0", [], r"`optim.lr` is -1.0"),
        ("lr = 1.0", [], r"perhaps `optim.lr`"),
        ("seed = 1", ["optim.lr"], "`key=value` is wanted"),
        ("seed = 1", ["seed.x=1"], "`seed` is a value, not a table"),
        ("seed = 1", ["optm.lr=1"], r"unknown key 'optm'; did you mean `optim`"),
        ("seed = 1", ["optim.lr=fast"], r"`optim.lr` is 'fast'"),
    ],
)
def test_bad_input_is_one_line_that_names_the_key(
    tmp_path: Path, text: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(config.ConfigError, match=message) as caught:
        config.load(_file(tmp_path, text), overrides)
    assert "\n" not in str(caught.value)
    assert "run.toml" in str(caught.value) or overrides


def test_missing_files_name_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"no such configuration file.*demo"):
        config.load(tmp_path / "absent.toml")
    with pytest.raises(config.ConfigError, match="no such configuration file"):
        config.load(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(config.ConfigError, match="not UTF-8"):
        config.load(tmp_path / "binary.toml")


def test_none_takes_a_key_out(tmp_path: Path) -> None:
    path = _file(tmp_path, "[prompt]\nhistory = 0\n")
    assert config.load(path).prompt.history == 0
    assert config.load(path, ["prompt.history=none"]).prompt.history is None
    assert config.load(path, ["optim.lr=none"]).optim.lr == config.Optim().lr


@pytest.mark.parametrize("word", ["none", "chains"])
def test_none_is_a_rule_of_exploration(tmp_path: Path, word: str) -> None:
    path = _file(tmp_path, '[explore]\nrule = "hindsight"\n')
    assert config.load(path, [f"explore.rule={word}"]).explore.rule == word
    assert config.load(path, ["explore.rule=off"]).explore.rule == "off"
