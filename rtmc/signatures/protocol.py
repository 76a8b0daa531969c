"""The two protocols and the register of signatures by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rtmc.errors import SignatureError, unknown_name

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step


class State(Protocol):
    """A state that folds: it is asked for its key before each step and told of the step after it."""

    def key(self) -> str | None:
        """Key of the state now. None is allowed only once all steps are taken: the last state is not known."""

    def update(self, step: Step) -> None:
        """Go on past `step`, which has been taken and answered."""


@runtime_checkable
class Signature(Protocol):
    """What makes two states and two actions the same."""

    def action(self, step: Step) -> str:
        """Key of the step's action."""

    def state(self, rollout: Rollout) -> State:
        """A state that stands before the rollout's first step."""


# Built-in signatures: name -> (module, class), imported when asked for.
_BUILT_IN = {
    "env": ("rtmc.signatures.env", "EnvSignature"),
    "text": ("rtmc.signatures.text", "TextSignature"),
}
_REGISTERED: dict[str, Callable[[], Signature]] = {}


def signature_names() -> list[str]:
    """Names that `rtmc.tabulate(..., signatures=name)` takes."""
    return sorted({*_BUILT_IN, *_REGISTERED})


def register_signature(name: str, factory: Callable[[], Signature]) -> None:
    """Make a signature known by name.

    name      a new name; a taken one is refused, so that no numbers change unseen
    factory   called without arguments whenever the signature is used, for instance a class

    Raises SignatureError (a ValueError) for a taken name, TypeError for a factory that cannot be called.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"`name` must be a string that is not empty, got {name!r}")
    if not callable(factory):
        raise TypeError(f"`factory` must be callable and return a signature, got {type(factory).__name__}")
    if name in signature_names():
        raise SignatureError(f"the signature name {name!r} is taken; choose another")
    _REGISTERED[name] = factory


def get_signature(signature: str | Signature) -> Signature:
    """The signature of that name, or the object itself if it is one.

    Raises SignatureError for an unknown name (near names are told), TypeError for anything else.
    """
    if isinstance(signature, str):
        if signature in _REGISTERED:
            made = _REGISTERED[signature]()
        elif signature in _BUILT_IN:
            module, attribute = _BUILT_IN[signature]
            made = getattr(import_module(module), attribute)()
        else:
            raise SignatureError(unknown_name("signature", signature, signature_names()))
    else:
        made = signature
    if not isinstance(made, Signature):
        raise TypeError(f"a signature has the methods `action` and `state`; got {type(made).__name__}")
    return made
