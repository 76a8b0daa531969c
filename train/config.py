"""The one configuration of a training run: typed, with the defaults, read from TOML and overridable key by key.

Sections are tables of the TOML file; `rtmc train CONFIG a.b=value` overrides any key. pydantic checks types and ranges
and names the key; near names are offered for unknown keys.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rtmc.atomic import atomic_path
from rtmc.errors import RtmcError, unknown_name


class ConfigError(RtmcError, ValueError):
    """A configuration that cannot be read: the message names the file and the key."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class Model(Section):
    name: str = Field("smollm2-135m", description="shipped model, local folder, or hub name of a causal language model")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 on a GPU, float32 on a CPU"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Lora(Section):
    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    layers: int = Field(0, ge=0, description="adapt only the last so many layers; 0 = all")
    modules: list[str] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        description="names of the linear modules that get an adapter",
    )
    adapt: Literal["turn", "all"] = Field(
        "turn",
        description="turn: the adapter reads cue and action, the prompt stays the base model's; all: everything",
    )


class Env(Section):
    id: str = Field("rtmc.gymenvs:rtmc/Household-v0", description="gymnasium id")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of gymnasium.make")


class Prompt(Section):
    format: Literal["plain", "chat"] = "plain"
    history: int | None = Field(None, ge=0, description="earlier turns that a context shows; unset = all")
    cue: str = Field(">", min_length=1)
    system: str = ""
    examples: int = Field(0, ge=0, description="worked examples by the environment's expert in front of every prompt")


class Act(Section):
    mode: Literal["choice", "free"] = Field("choice", description="choose among admissible commands, or write freely")
    hide: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="beginnings of commands that are not offered as choices"
    )
    temperature: float = Field(1.0, gt=0)
    max_new_tokens: int = Field(48, ge=1)


class Credit(Section):
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the estimator (see `rtmc estimators`)"
    )
    signatures: str = "env"
    valid_reward: float = 0.005
    invalid_reward: float = -0.005
    validation_bonus: float = Field(0.05, description="for steps that the environment's info calls `validation`")
    filter_uniform: bool = Field(True, description="leave out groups whose outcomes are all equal")


class Explore(Section):
    rule: Literal["off", "hindsight", "entropy", "random", "none", "chains"] = Field(
        "off", description="where rollouts branch; off: no trees; none or chains: no branches, for the same budget"
    )
    budget_tokens: int = Field(2000, ge=1, description="tokens to sample for each task; `group_size` chains come first")
    candidates: int | None = Field(None, ge=1, description="turns sampled at a branch; unset = 2 by hindsight, else 1")
    per_round: int = Field(1, ge=1, description="branches that a task gets at a time")
    threshold: float = Field(-0.14, description="by hindsight: a turn with log rho below it marks its history")
    penalty: float = Field(0.05, description="of a history for each branch it has")
    eps_smooth: float = Field(0.05, ge=0, le=1, description="of the reference answer's likelihood")
    answers: Literal["first", "max"] = Field("first", description="which wording of the reference answer is scored")
    wrapper: str | None = Field(
        None, description="text around the reference answer, {} = its place; unset = the task's"
    )


class Loss(Section):
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    kl: float = Field(0.0, ge=0, description="weight of the divergence from the base model (adapter off)")
    kl_mode: Literal["k1", "k2", "k3", "abs"] = "k3"
    entropy: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    ratio: Literal["token", "turn"] = "token"
    aggregate: Literal[
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
        "rollout-mean",
    ] = "token-mean"


class Optim(Section):
    lr: float = Field(1e-4, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    grad_norm: float = Field(1.0, gt=0)
    warmup_steps: int = Field(0, ge=0)
    decay: Literal["none", "linear"] = Field("none", description="of the learning rate over the run, after the warm-up")
    epochs: int = Field(1, ge=1, description="passes over the turns of a step")
    minibatch: int = Field(64, ge=1, description="distinct turns of one optimiser step")
    max_bad_updates: int = Field(5, ge=1, description="stop after so many updates in a row were skipped as not finite")


class Evaluation(Section):
    tasks: int = Field(192, ge=1)
    every: int = Field(0, ge=0, description="also evaluate every so many steps; 0 = at the start and the end alone")
    greedy: bool = Field(True, description="evaluate greedily too")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="environment arguments that differ from training's"
    )


class Budget(Section):
    pack_tokens: int = Field(384, ge=16, description="tokens of one forward pass")
    prefix_tokens: int = Field(65536, ge=1024, description="tokens whose keys and values are kept")
    threads: int = Field(0, ge=0, description="CPU threads of torch; 0 = its own choice")


class Config(Section):
    method: str = "rtmc"
    seed: int = Field(0, ge=0, lt=2**31)
    steps: int = Field(50, ge=1)
    tasks_per_step: int = Field(8, ge=1)
    group_size: int = Field(8, ge=1)
    checkpoint_every: int = Field(10, ge=1)
    keep_checkpoints: int = Field(2, ge=1)
    model: Model = Model()
    lora: Lora = Lora()
    env: Env = Env()
    prompt: Prompt = Prompt()
    act: Act = Act()
    credit: Credit = Credit()
    explore: Explore = Explore()
    loss: Loss = Loss()
    optim: Optim = Optim()
    evaluation: Evaluation = Evaluation()
    budget: Budget = Budget()


def shipped() -> dict[str, Path]:
    """Configurations that come with the package: name -> file."""
    folder = resources.files("rtmc.train") / "configs"
    return {Path(str(f)).stem: Path(str(f)) for f in folder.iterdir() if str(f).endswith(".toml")}


def load(source: str | Path, overrides: list[str] | None = None) -> Config:
    """The configuration of a TOML file, or of a shipped name, with `key=value` overrides.

    Raises ConfigError that names the file and key: missing or empty file, TOML syntax, unknown key (with near names),
    wrong type or range.
    """
    path = shipped().get(str(source), Path(source))
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(
            f"{source}: no such configuration file (shipped ones: {', '.join(sorted(shipped()))})"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text ({error}); a TOML file is wanted") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    if not data:
        raise ConfigError(f'{source}: the file is empty; keys such as `method = "rtmc"` are wanted')
    for override in overrides or []:
        apply_override(data, override)
    return parse(data, str(source))


def to_toml(config: Config) -> str:
    """The configuration as TOML, every key written out (an unset key is left away: TOML has no null)."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def save(config: Config, path: Path) -> None:
    with atomic_path(path) as part:
        part.write_text(to_toml(config), encoding="utf-8")


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set `a.b=value` in nested tables; the value is read as TOML, and as plain text where it is not TOML.

    `a.b=none` takes the key out, so that its default holds; where `none` is one of the key's own words
    (`explore.rule`), it is that word.
    """
    key, sign, value = override.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"override {override!r}: `key=value` is wanted, such as `optim.lr=1e-4`")
    parsed: Any
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    key = key.strip()
    *tables, last = key.split(".")
    for name in tables:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"override {override!r}: `{name}` is a value, not a table")
    if value == "none" and not _has_word(key, value):  # TOML has no null: the key goes back to its default
        data.pop(last, None)
    else:
        data[last] = parsed


def _has_word(key: str, word: str) -> bool:
    """Whether a key is one of a few words, and this is among them."""
    model: Any = Config
    *tables, last = key.split(".")
    for name in tables:
        field = getattr(model, "model_fields", {}).get(name)
        model = field.annotation if field is not None else None
    field = getattr(model, "model_fields", {}).get(last)
    return field is not None and get_origin(field.annotation) is Literal and word in get_args(field.annotation)


def parse(data: dict[str, Any], source: str = "config") -> Config:
    """The configuration of nested tables; `source` is named in errors."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    key = ".".join(place)
    if first["type"] == "extra_forbidden":
        known = known_keys()
        table = ".".join(place[:-1])
        siblings = [k.rsplit(".", 1)[-1] for k in known if k.rpartition(".")[0] == table]
        elsewhere = [k for k in known if k.rsplit(".", 1)[-1] == place[-1]]
        near = elsewhere or get_close_matches(key, known, n=3, cutoff=0.6)
        text = unknown_name("key", key, siblings)
        if near and f"`{near[0]}`" not in text:
            text += f"; perhaps `{near[0]}`"
        return text
    wanted = first["msg"][0].lower() + first["msg"][1:]
    return f"`{key}` is {first['input']!r}: {wanted}"


def known_keys(model: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """Every key with its dotted name."""
    keys = []
    for name, info in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            keys += known_keys(info.annotation, f"{prefix}{name}.")
    return keys
