"""The two protocols and the register of signatures by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rtmc.errors import SignatureError, unknown_name

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step


class State(Protocol):
    """A state that folds: it is asked for its key before each step and told of the step after it.

    A state may also offer `action(step) -> str`, the key of the action that is taken in it; it then goes before the
    signature's, which knows nothing but the step.
    """

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
    "embedding": ("rtmc.signatures.embedding", "EmbeddingSignature"),
    "env": ("rtmc.signatures.env", "EnvSignature"),
    "household": ("rtmc.signatures.household", "HouseholdSignature"),
    "qa": ("rtmc.signatures.qa", "QaSignature"),
    "similarity": ("rtmc.signatures.similarity", "SimilaritySignature"),
    "swe": ("rtmc.signatures.swe", "SweSignature"),
    "text": ("rtmc.signatures.text", "TextSignature"),
    "tokens": ("rtmc.signatures.tokens", "TokensSignature"),
}
_REGISTERED: dict[str, Callable[..., Signature]] = {}


def signature_names() -> list[str]:
    """Names that `rtmc.tabulate(..., signatures=name)` takes."""
    return sorted({*_BUILT_IN, *_REGISTERED})


def register_signature(name: str, factory: Callable[..., Signature]) -> None:
    """Make a signature known by name.

    name      a new name; a taken one is refused, so that no numbers change unseen
    factory   called whenever the signature is used, with the options given beside the name; for instance a class

    Raises SignatureError (a ValueError) for a taken name, TypeError for a factory that cannot be called.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"`name` must be a string that is not empty, got {name!r}")
    if not callable(factory):
        raise TypeError(f"`factory` must be callable and return a signature, got {type(factory).__name__}")
    if name in signature_names():
        raise SignatureError(f"the signature name {name!r} is taken; choose another")
    _REGISTERED[name] = factory


def get_signature(signature: str | Signature, **options: Any) -> Signature:
    """The signature of that name, or the object itself if it is one.

    Options may be given as keywords or within the name, `"swe:hash_chars=0,bucket=50"`: numbers, `true`, `false`,
    `none` and words; several words for one option are joined by `+` (`"swe:state_classes=modify+test"`).

    Raises SignatureError for an unknown name (near names are told), an option that the signature does not have, or a
    value it does not take; TypeError for anything else.
    """
    if isinstance(signature, str):
        name, options = _spelled(signature, options)
        if name in _REGISTERED:
            factory: Any = _REGISTERED[name]
        elif name in _BUILT_IN:
            module, attribute = _BUILT_IN[name]
            factory = getattr(import_module(module), attribute)
        else:
            raise SignatureError(unknown_name("signature", name, signature_names()))
        if options:
            _check_options(name, factory, options)
        made = factory(**options)
    else:
        if options:
            raise TypeError("options go with a signature's name; this is a signature made already")
        made = signature
    if not isinstance(made, Signature):
        raise TypeError(f"a signature has the methods `action` and `state`; got {type(made).__name__}")
    return made


def _spelled(text: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and options of `name:option=value,...`."""
    if text in _REGISTERED or ":" not in text:
        return text, options
    name, _, spelled = text.partition(":")
    found = dict(options)
    for part in filter(None, (part.strip() for part in spelled.split(","))):
        option, mark, value = (piece.strip() for piece in part.partition("="))
        if not mark or not option:
            raise SignatureError(f"signature {text!r}: {part!r} is no option; write `{name}:option=value,option=value`")
        if option in found:
            raise SignatureError(f"signature {text!r}: the option `{option}` is given twice")
        found[option] = [_value(word) for word in value.split("+")] if "+" in value else _value(value)
    return name, found


def _value(word: str) -> Any:
    known = {"true": True, "false": False, "none": None}
    if word.lower() in known:
        return known[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def _check_options(name: str, factory: Callable[..., Signature], options: dict[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            has = unknown_name(f"option of the signature `{name}`:", option, parameters) if parameters else ""
            raise SignatureError(has or f"the signature `{name}` has no options; got `{option}`")
