"""`embedding`: observations whose vectors are close are one state (RTMC's outlook, arXiv 2604.11037, section 6).

Vectors come from the caller: `encoder` is a function that turns n texts into an (n, d) array, or one of

    "ngrams"      counts of the characters' 3-grams, hashed to 1024 numbers; needs no model, sees spelling only
    "wordllama"   the word vectors that the package wordllama ships; sees words, not their order

The distinct texts of a task, in alphabetical order, are clustered by complete linkage: in a cluster every two vectors
have a cosine of at least `threshold`. So the clusters do not depend on the order of the rollouts. All rollouts are
needed first: `fit(rollouts)`, which `rtmc.tabulate` calls. A key is the alphabetically first text of the cluster.

What this is not: an encoder trained for the task; how much to merge is the threshold's, and a report of the signature's
quality (rtmc/signatures/quality.py) shows what it merged.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtmc.errors import SignatureError
from rtmc.signatures.keys import bounded
from rtmc.signatures.similarity import observations
from rtmc.signatures.text import TextSignature

if TYPE_CHECKING:
    import numpy as np

    from rtmc.rollouts import Rollout, Step

Encoder = Callable[[list[str]], Any]
_DIMENSIONS = 1024
# The distances of a task's texts are held at once: 8 bytes * n * (n - 1) / 2.
_MAX_TEXTS = 8000


class EmbeddingSignature:
    """States (and, on request, actions) by clusters of vectors within a task.

    encoder     function from a list of n texts to an (n, d) array of finite numbers, or "ngrams" or "wordllama"
    threshold   least cosine of two texts in a cluster, -1 to 1
    actions     cluster the actions too; else they are as in `text`

    Raises SignatureError for an option out of its range, vectors of another shape or not finite, and a text that was
    not fitted; ImportError where scipy or the encoder's package is missing.
    """

    def __init__(self, encoder: str | Encoder = "ngrams", threshold: float = 0.9, actions: bool = False) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not -1 <= threshold <= 1:
            raise SignatureError(f"embedding: `threshold` must be a cosine, -1 to 1; got {threshold!r}")
        if type(actions) is not bool:
            raise SignatureError(f"embedding: `actions` must be true or false; got {actions!r}")
        self.threshold = float(threshold)
        self.actions = actions
        self._encode = _encoder(encoder)
        self._text = TextSignature()
        self._states: dict[str, dict[str, str]] = {}
        self._acts: dict[str, dict[str, str]] = {}

    def fit(self, rollouts: Iterable[Rollout]) -> None:
        """Cluster the texts of all rollouts, task by task."""
        seen: dict[str, set[str]] = {task: set(known) for task, known in self._states.items()}
        done: dict[str, set[str]] = {task: set(known) for task, known in self._acts.items()}
        for rollout in rollouts:
            rollout.complete()
            seen.setdefault(rollout.task_id, set()).update(observations(rollout))
            if self.actions:
                done.setdefault(rollout.task_id, set()).update(map(self._text.action, rollout.steps))
        self._states = {task: self._clustered(task, texts) for task, texts in seen.items()}
        self._acts = {task: self._clustered(task, texts) for task, texts in done.items()}

    def action(self, step: Step) -> str:
        """The action's text; with `actions`, a state gives the cluster's."""
        return self._text.action(step)

    def state(self, rollout: Rollout) -> _Clustered:
        """A state before the first step."""
        return _Clustered(self, rollout)

    def known(self, kind: str, task: str, text: str) -> str:
        """Key of a text: `kind` is "state" or "action"."""
        found = (self._states if kind == "state" else self._acts).get(task, {}).get(text)
        if found is None:
            what = "observation" if kind == "state" else "action"
            raise SignatureError(
                f"embedding: task {task!r} has an {what} that was not fitted; call `fit` with all rollouts first"
            )
        return bounded(found)

    def _clustered(self, task: str, texts: set[str]) -> dict[str, str]:
        ordered = sorted(texts)
        if len(ordered) > _MAX_TEXTS:
            raise SignatureError(
                f"embedding: task {task!r} has {len(ordered)} distinct texts; up to {_MAX_TEXTS} are clustered, choose "
                "another signature or cut the rollouts"
            )
        labels = clusters(self._encode(ordered), len(ordered), self.threshold)
        heads: dict[int, str] = {}
        return {text: heads.setdefault(label, text) for text, label in zip(ordered, labels, strict=True)}


class _Clustered:
    def __init__(self, signature: EmbeddingSignature, rollout: Rollout) -> None:
        self._signature = signature
        self._task = rollout.task_id
        self._texts = iter(observations(rollout))
        self._text = next(self._texts, None)

    def key(self) -> str | None:
        return None if self._text is None else self._signature.known("state", self._task, self._text)

    def action(self, step: Step) -> str:
        text = self._signature.action(step)
        return self._signature.known("action", self._task, text) if self._signature.actions else text

    def update(self, step: Step) -> None:
        self._text = next(self._texts, None)


def clusters(vectors: Any, count: int, threshold: float) -> list[int]:
    """Label of each of `count` vectors, (count, d): complete linkage, cut where a cosine would fall below `threshold`.

    A vector of zeros resembles nothing but another one.

    Raises SignatureError for another shape or numbers that are not finite, ImportError where scipy is missing.
    """
    import numpy as np

    try:
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import pdist
    except ImportError:
        raise ImportError(
            "the signature `embedding` clusters with scipy, which is not installed; pip install 'rtmc[report]'"
        ) from None
    array = np.asarray(vectors, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != count or (count and array.shape[1] == 0):
        raise SignatureError(
            f"embedding: the encoder must give an array ({count}, d) for {count} texts; got {array.shape}"
        )
    if not np.isfinite(array).all():
        raise SignatureError("embedding: the encoder gave a number that is not finite")
    if count < 2:
        return [0] * count
    # Scaled first, so that neither huge nor tiny vectors lose their direction.
    scale = np.abs(array).max(axis=1, keepdims=True)
    array = np.divide(array, scale, out=np.zeros_like(array), where=scale > 0)
    length = np.linalg.norm(array, axis=1, keepdims=True)
    units = np.divide(array, length, out=np.zeros_like(array), where=length > 0)
    # One more axis keeps vectors of zeros apart from all others, and together.
    units = np.hstack([units, (length == 0).astype(np.float64)])
    # |u - v|^2 = 2 (1 - cosine) of unit vectors; 1e-9 is room for rounding.
    apart = pdist(units, "sqeuclidean")
    labels = fcluster(linkage(apart, "complete"), t=2 * (1 - threshold) + 1e-9, criterion="distance")
    return [int(label) for label in labels]


def _encoder(encoder: str | Encoder) -> Encoder:
    if callable(encoder):
        return encoder
    if encoder == "ngrams":
        return ngrams
    if encoder == "wordllama":
        return _wordllama()
    raise SignatureError(f'embedding: `encoder` must be a function, "ngrams" or "wordllama"; got {encoder!r}')


def ngrams(texts: Sequence[str]) -> np.ndarray:
    """(n, 1024) counts of each text's 3-grams of characters, white space as one, by CRC-32 of the 3-gram."""
    import numpy as np

    made = np.zeros((len(texts), _DIMENSIONS))
    for row, text in zip(made, texts, strict=True):
        plain = f" {' '.join(text.lower().split())} "
        counts: dict[str, int] = {}
        for at in range(len(plain) - 2):
            gram = plain[at : at + 3]
            counts[gram] = counts.get(gram, 0) + 1
        for gram, number in counts.items():
            row[zlib.crc32(gram.encode("utf-8", "backslashreplace")) % _DIMENSIONS] += number
    return made


def _wordllama() -> Encoder:
    try:
        import wordllama  # type: ignore[import-not-found,unused-ignore]  # optional, installed by who wants it
    except ImportError:
        raise ImportError(
            'the encoder "wordllama" needs the package of that name; pip install wordllama, or give a function'
        ) from None
    import numpy as np

    # The package looks for its own tokenizer in a folder of another name, unless its folder is the cache.
    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)

    def encode(texts: list[str]) -> np.ndarray:
        made = np.zeros((len(texts), 256))
        # A text without a word has no mean of its words' vectors.
        worded = [place for place, text in enumerate(texts) if text.strip()]
        if worded:
            made[worded] = model.embed([texts[place] for place in worded])
        return made

    return encode
