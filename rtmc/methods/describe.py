"""The text of one estimator: its docstring, then needs, options with defaults, what `parity` sets, and the source.

Everything behind the docstring is generated from the register, so that it cannot fall behind the code.

What this is not: a docstring. What a method computes stands with its function and at the head of its file.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping

from rtmc.methods.inputs import MEANING, Waivers
from rtmc.methods.options import Engines, Option


def text_of(
    name: str,
    docstring: str | None,
    needs: tuple[str, ...],
    meanings: Mapping[str, str],
    options: Mapping[str, Option],
    source: str,
    unless: Waivers,
    engines: Engines,
) -> str:
    """The text of a registered method. The arguments are those of `register_estimator`."""
    own = inspect.cleandoc(docstring or f"`{name}` has no docstring.")
    defaults = ", ".join(f"{option}={options[option].default!r}" for option in options) or "there are no options"
    lines = [_lines(f"Defaults: {defaults}.")]
    if options:
        width = max(map(len, options))
        wanted = [_lines(f"  {key:<{width}}  {option.wanted}", width + 4) for key, option in options.items()]
        lines += ["Wanted:", *wanted]
    for parity, of_engine in engines.items():
        has = "; ".join(f"{option} {' or '.join(map(repr, values))}" for option, values in of_engine.items())
        lines.append(_lines(f"parity={parity!r} has {has}."))
    lines.append(_lines(f"Needs: {', '.join(needs) or 'nothing'} beyond group, rollout, index and outcome."))
    for need in needs:
        meaning = meanings.get(need) or MEANING.get(need)
        if meaning:
            without = [f"{key}={value!r}" for key, values in unless.get(need, {}).items() for value in values]
            waiver = f" (not read with {' or '.join(without)})" if without else ""
            lines.append(_lines(f"  {need}: {meaning}{waiver}", 4))
    lines.append(_lines(f"Source: {source or 'not given'}."))
    return own + "\n\n" + "\n".join(lines)


def _lines(text: str, indent: int = 2) -> str:
    return textwrap.fill(text, 120, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
