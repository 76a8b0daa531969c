"""Step-level credit assignment for language-model agents.

    import rtmc

    table = rtmc.StepTable.from_rows(rows)             # or rtmc.tabulate(rtmc.read_rollouts("run.jsonl"))
    estimate = rtmc.estimate(table, "rtmc", gamma=0.99)
    estimate.advantage                                 # (steps,)

Importing this package costs nothing: a public name loads what it needs when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtmc import explore as explore
    from rtmc.errors import (
        EstimatorError,
        MissingPackageError,
        RolloutError,
        RtmcError,
        SignatureError,
        TableError,
    )
    from rtmc.methods.registry import advantages, estimate, estimators, register_estimator
    from rtmc.rolloutfile import read_rollouts, write_rollouts
    from rtmc.rollouts import Rollout, Step, Stop
    from rtmc.signatures import register_signature
    from rtmc.table import StepTable
    from rtmc.tabulation import tabulate
    from rtmc.types import Ending, Estimate

__version__ = "0.1.0"

# Public name -> module that defines it. No module may have the name of a public name: importing it would put
# the module in the name's place.
_HOMES = {
    "Ending": "rtmc.types",
    "Estimate": "rtmc.types",
    "EstimatorError": "rtmc.errors",
    "MissingPackageError": "rtmc.errors",
    "Rollout": "rtmc.rollouts",
    "RolloutError": "rtmc.errors",
    "RtmcError": "rtmc.errors",
    "SignatureError": "rtmc.errors",
    "Step": "rtmc.rollouts",
    "StepTable": "rtmc.table",
    "Stop": "rtmc.rollouts",
    "TableError": "rtmc.errors",
    "advantages": "rtmc.methods.registry",
    "estimate": "rtmc.methods.registry",
    "estimators": "rtmc.methods.registry",
    "read_rollouts": "rtmc.rolloutfile",
    "register_estimator": "rtmc.methods.registry",
    "register_signature": "rtmc.signatures",
    "tabulate": "rtmc.tabulation",
    "write_rollouts": "rtmc.rolloutfile",
}

# Modules that are public under their own name, `rtmc.explore.select(...)`, and loaded when first used.
_MODULES = ("explore",)

__all__ = [
    "Ending",
    "Estimate",
    "EstimatorError",
    "MissingPackageError",
    "Rollout",
    "RolloutError",
    "RtmcError",
    "SignatureError",
    "Step",
    "StepTable",
    "Stop",
    "TableError",
    "__version__",
    "advantages",
    "estimate",
    "estimators",
    "read_rollouts",
    "register_estimator",
    "register_signature",
    "tabulate",
    "write_rollouts",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")  # which sets the attribute
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
