"""`similarity`: observations that are nearly the same text are one state (GiGPO's similarity grouping).

Two ways to group the observations of a task:

    order="first"   greedy first fit: an observation joins the first group whose first member it resembles, else it
                    founds one. What GiGPO does; the groups depend on the order of the rollouts.
    order="free"    the connected components of "resembles": the groups do not depend on any order, but a chain of
                    small steps joins what is far apart. Needs all rollouts first: `fit(rollouts)`, which
                    `rtmc.tabulate` calls.

Resemblance is a ratio in [0, 1]: rapidfuzz's by default (1 - edit distance without substitutions / total length), or
with `parity="verl_agent"` difflib's `SequenceMatcher(None, observation, first member).ratio()`, which is never higher
and depends on the order of its arguments. The two disagree near a threshold of 0.95. A key is the text of the group's
first member (order="free": the first in the alphabet).

Source: GiGPO (arXiv 2505.10978), `build_step_group(enable_similarity=True)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from rtmc.errors import SignatureError
from rtmc.signatures.keys import bounded
from rtmc.signatures.text import TextSignature

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step

Resembles = Callable[[str, str], bool]


def resemblance(threshold: float, parity: str | None = None) -> Resembles:
    """Function (a, b) -> whether the ratio of the texts is at least `threshold`.

    Raises SignatureError for a threshold outside [0, 1] or an unknown parity, ImportError where rapidfuzz is missing.
    """
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
        raise SignatureError(f"similarity: `threshold` must be a number from 0 to 1; got {threshold!r}")
    if parity not in (None, "verl_agent"):
        raise SignatureError(f'similarity: `parity` must be None or "verl_agent"; got {parity!r}')
    if parity is not None:

        def by_difflib(a: str, b: str) -> bool:
            matcher = SequenceMatcher(None, a, b)
            # Both are upper bounds of the ratio, and cheap.
            if matcher.real_quick_ratio() < threshold or matcher.quick_ratio() < threshold:
                return False
            return matcher.ratio() >= threshold

        return by_difflib
    try:
        from rapidfuzz.distance import Indel
    except ImportError:
        raise ImportError(
            "the signature `similarity` compares texts with rapidfuzz, which is not installed; "
            "pip install 'rtmc[report]', or ask for parity=\"verl_agent\""
        ) from None

    def by_rapidfuzz(a: str, b: str) -> bool:
        return Indel.normalized_similarity(a, b, score_cutoff=threshold) >= threshold

    return by_rapidfuzz


def first_fit(texts: Sequence[str], resembles: Resembles) -> list[int]:
    """Group of each text, numbered in order of appearance: that of the first group whose first member it resembles."""
    heads: list[str] = []
    return [_fitted(text, heads, resembles) for text in texts]


def _fitted(text: str, heads: list[str], resembles: Resembles) -> int:
    for number, head in enumerate(heads):
        if text == head or resembles(text, head):
            return number
    heads.append(text)
    return len(heads) - 1


def components(texts: Iterable[str], resembles: Resembles) -> dict[str, str]:
    """The first text, in the alphabet, of each text's connected component."""
    ordered = sorted(set(texts))
    above = list(range(len(ordered)))

    def root(number: int) -> int:
        while above[number] != number:
            above[number] = above[above[number]]
            number = above[number]
        return number

    for second in range(len(ordered)):
        for first in range(second):
            a, b = root(first), root(second)
            # A pair that is joined already needs no comparison.
            if a != b and (resembles(ordered[first], ordered[second]) or resembles(ordered[second], ordered[first])):
                above[max(a, b)] = min(a, b)
    return {text: ordered[root(number)] for number, text in enumerate(ordered)}


class SimilaritySignature(TextSignature):
    """States by nearly equal observations within a task; actions as in `text`.

    threshold   least ratio of two texts that are one state, 0 to 1
    parity      None = rapidfuzz's ratio, "verl_agent" = difflib's
    order       "first" or "free" (see above)

    One object keeps the groups of every task it has seen. Raises SignatureError for an option out of its range, and
    where `order="free"` meets an observation that `fit` was not given.
    """

    def __init__(self, threshold: float = 0.95, parity: str | None = None, order: str = "first") -> None:
        if order not in ("first", "free"):
            raise SignatureError(f'similarity: `order` must be "first" or "free"; got {order!r}')
        self.threshold = threshold
        self.order = order
        self._resembles = resemblance(threshold, parity)
        self._heads: dict[str, list[str]] = {}
        self._known: dict[str, dict[str, str]] = {}

    def fit(self, rollouts: Iterable[Rollout]) -> None:
        """Group the observations of all rollouts, task by task; with order="first" there is nothing to do."""
        if self.order == "first":
            return
        texts: dict[str, set[str]] = {}
        for rollout in rollouts:
            rollout.complete()
            texts.setdefault(rollout.task_id, set()).update(observations(rollout))
        for task, found in texts.items():
            self._known[task] = components(found | self._known.get(task, {}).keys(), self._resembles)

    def state(self, rollout: Rollout) -> _Grouped:  # type: ignore[override]  # a state of its own kind
        """A state before the first step."""
        return _Grouped(self, rollout)

    def group_of(self, task: str, text: str) -> str:
        """Key of an observation: the text that stands for its group."""
        known = self._known.setdefault(task, {})
        if text not in known:
            if self.order == "free":
                raise SignatureError(
                    f"similarity: task {task!r} has an observation that was not fitted; "
                    "call `fit` with all rollouts first"
                )
            heads = self._heads.setdefault(task, [])
            known[text] = heads[_fitted(text, heads, self._resembles)]
        return bounded(known[text])


def observations(rollout: Rollout) -> list[str]:
    """What a rollout's states show: the observation before each step, and the last answer where there is one."""
    texts = [step.observation for step in rollout.steps]
    if rollout.steps and rollout.steps[-1].answer is not None:
        texts.append(rollout.steps[-1].answer)
    return texts


class _Grouped:
    def __init__(self, signature: SimilaritySignature, rollout: Rollout) -> None:
        self._signature = signature
        self._task = rollout.task_id
        self._texts = iter(observations(rollout))
        self._text = next(self._texts, None)

    def key(self) -> str | None:
        return None if self._text is None else self._signature.group_of(self._task, self._text)

    def update(self, step: Step) -> None:
        self._text = next(self._texts, None)
