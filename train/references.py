"""The reference answer of a task: what exploration asks the likelihood of.

What this is not: it scores nothing, and it is never shown to the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium

from rtmc.errors import RtmcError


class ExploreError(RtmcError, ValueError):
    """An exploration that cannot start: the message says what the environment, the policy or the call lacks."""


@dataclass(frozen=True)
class Reference:
    """The right answer of a task in every accepted wording, the first being the reference; `{}` marks its place in
    `wrapper`, the text that the policy would write it in.

    Raises TypeError or ValueError for no text, a blank one, or a wrapper without exactly one `{}`.
    """

    answers: tuple[str, ...]
    wrapper: str = "<answer>{}</answer>"

    def __post_init__(self) -> None:
        if isinstance(self.answers, str) or not all(isinstance(answer, str) for answer in self.answers):
            raise TypeError(f"a reference's `answers` must be a sequence of texts, got {self.answers!r}")
        object.__setattr__(self, "answers", tuple(answer.strip() for answer in self.answers))
        if not self.answers or not all(self.answers):
            raise ValueError(
                f"a reference's `answers` must be texts, at least one and none blank, got {self.answers!r}"
            )
        if not isinstance(self.wrapper, str) or self.wrapper.count("{}") != 1:
            raise ValueError(f"a reference's `wrapper` must be a text with one {{}} in it, got {self.wrapper!r}")


def reference_of(env: gymnasium.Env) -> Reference:
    """The reference answer of the task that `env` was just reset to.

    Looked for, in this order:

    * `env.unwrapped.reference_answer()`, an environment's own: a text, several, or a Reference;
    * a question with `answers` in its snapshot, as Search QA's: these, in the form its actions have (`form` "tools":
      `finish({})`, else `<answer>{}</answer>`);
    * a goal with a `sentence` in its snapshot, as the household's: the success text HOUSEHOLD_SUCCESS.

    Raises ExploreError where there is none.
    """
    plain: Any = env.unwrapped
    own = getattr(plain, "reference_answer", None)
    if callable(own):
        told = own()
        return told if isinstance(told, Reference) else Reference((told,) if isinstance(told, str) else tuple(told))
    take = getattr(plain, "snapshot", None)
    now = take() if callable(take) else None
    answers = getattr(getattr(now, "question", None), "answers", None)
    if answers is not None:
        wrapper = "finish({})" if getattr(plain, "form", "tags") == "tools" else "<answer>{}</answer>"
        return Reference(tuple(answer for answer in answers if answer.strip()), wrapper)
    sentence = getattr(getattr(getattr(now, "task", None), "goal", None), "sentence", None)
    if sentence is not None:
        return household_success(sentence)
    raise ExploreError(
        f"no reference answer is known for {type(plain).__name__}: give `reference`, a text, a Reference or a function "
        "of the environment; or give it a method `reference_answer()`; or None, with rule 'entropy', 'random' or 'none'"
    )


def household_success(sentence: str) -> Reference:
    """The success text of a household goal: "Done or open? The task to put some mug on shelf is done."

    What is scored is the word `done` in it. The goal's own sentence would say little: a model repeats it from the
    prompt whatever was achieved. Both words are named in front, so that the model divides its belief between them and
    p does not drown in `eps_smooth`.
    """
    return Reference(("done",), f"Done or open? The task to {sentence} is {{}}.")
