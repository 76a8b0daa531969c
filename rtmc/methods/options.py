"""Options of an estimator: a default, a check, words for both, and what `parity` makes of them.

What this is not: a list of options. Each method registers its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any


@dataclass(frozen=True)
class Option:
    """One keyword of an estimator.

    default   value used where the caller gives none
    wanted    what a value must be, in words; for messages and tables
    check     True for a value that is allowed
    """

    default: Any
    wanted: str = "any value"
    check: Callable[[Any], bool] = lambda value: True

    def accept(self, name: str, value: Any) -> Any:
        """`value` itself. Raises ValueError naming the option, what came and what is wanted."""
        if not self.check(value):
            raise ValueError(f"option `{name}` must be {self.wanted}, got {value!r}")
        return value


def number(default: float, low: float = -math.inf, high: float = math.inf) -> Option:
    """A finite number in [low, high]."""

    def check(value: Any) -> bool:
        real = isinstance(value, Real) and not isinstance(value, bool)
        return real and math.isfinite(value) and low <= value <= high

    return Option(default, "a finite number" + _range_text(low, high), check)


def whole(default: int, low: int, high: int) -> Option:
    """An integer in [low, high]."""

    def check(value: Any) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= high

    return Option(default, "an integer" + _range_text(low, high), check)


def flag(default: bool) -> Option:
    """True or False."""
    return Option(default, "True or False", lambda value: isinstance(value, bool))


def choice(default: str | None, names: Sequence[str]) -> Option:
    """One of `names`; None too where that is the default."""
    allowed = [default, *names] if default is None else list(names)
    words = " or ".join(repr(name) for name in allowed)
    return Option(default, words, lambda value: value in allowed and not isinstance(value, bool))


def _range_text(low: float, high: float) -> str:
    if math.isfinite(low) and math.isfinite(high):
        return f" in [{low:g}, {high:g}]"
    if math.isfinite(low):
        return f" of at least {low:g}"
    return f" of at most {high:g}" if math.isfinite(high) else ""


# Value of `parity` -> option -> the values that this engine knows, the first of them its own.
Engines = Mapping[str, Mapping[str, tuple[Any, ...]]]


def resolve(options: Mapping[str, Option], given: Mapping[str, Any], engines: Engines) -> dict[str, Any]:
    """Every option with its value: what was given, else what the engine of `parity` has, else the default.

    Raises ValueError for a value out of range, or one that was given and that the engine does not know. `given` holds
    names of `options` alone.
    """
    settings = {name: option.default for name, option in options.items()}
    settings |= {name: options[name].accept(name, value) for name, value in given.items()}
    parity = settings.get("parity")
    for name, values in engines.get(parity, {}).items() if parity is not None else ():
        if name not in given:
            settings[name] = values[0]
        elif settings[name] not in values:
            raise ValueError(
                f"parity={parity!r} has `{name}` {' or '.join(map(repr, values))}, got {settings[name]!r}; leave "
                f"`{name}` out, or leave `parity` out"
            )
    return settings
