"""The library's errors: one flat family, each also the standard error a caller would expect.

What this is not: `rtmc.kernels` and `rtmc.gymenvs` raise plain `ValueError` / `TypeError`, so that they can
be used without the rest. A wrong *type* of argument is a plain `TypeError` here too.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class RtmcError(Exception):
    """Base of the library's own errors."""


class TableError(RtmcError, ValueError):
    """A step table, or the rows it is built from, breaks its contract."""


class EstimatorError(RtmcError, ValueError):
    """Unknown estimator, unknown option, option value out of range, or an input the method needs is missing."""


class RolloutError(RtmcError, ValueError):
    """A rollout, or a file of rollouts, is not in its documented form."""


class SignatureError(RtmcError, ValueError):
    """Unknown signature, or a step that lacks what the signature reads."""


class MissingPackageError(RtmcError, ImportError):
    """An optional package is needed for this call; the message names the extra that brings it."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Text for an unknown name: what came, the nearest known names, then all of them.

    Near is near but for case and `-` for `_`; a name that differs in these alone is the only one told.
    """
    names = sorted(known)
    folded = {n: _folded(n) for n in names}
    wanted = _folded(str(name))
    near = [n for n in names if folded[n] == wanted]
    for close in [] if near else get_close_matches(wanted, sorted(set(folded.values())), n=3, cutoff=0.5):
        near += [n for n in names if folded[n] == close]
    hint = f"; did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(names) if names else 'none'})"


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")
