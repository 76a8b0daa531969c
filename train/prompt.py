"""From observations and actions to token contexts: token in, token out.

A conversation is a list of *pieces*, each encoded once. An action's piece is exactly the tokens that were sampled; no
text is ever decoded and encoded again, so what is trained is what was sampled. `history` bounds how many earlier
turns a context shows: None = all (the context only grows), k >= 1 = the first observation and the last k turns, 0 =
the current observation alone (which must then say all that matters, the task included).

Two formats:

* `plain`: worked examples (if any), then observation, newline, cue `>`; the action is a space, the text, a newline.
* `chat`: the tokenizer's own chat template; the observation is the user's message, the action the assistant's. A chat
  always shows the whole conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from jinja2 import TemplateError

from rtmc.train.policy import Choices


@dataclass
class Conversation:
    """One rollout's pieces so far: observations and actions as token ids, in turn."""

    observations: list[tuple[int, ...]] = field(default_factory=list)
    actions: list[tuple[int, ...]] = field(default_factory=list)

    def window(self, history: int | None) -> list[tuple[int, ...]]:
        """The pieces a context shows, by the rule of the module's head."""
        turns = len(self.actions)
        first = 0 if history is None else max(0, turns - history)
        pieces: list[tuple[int, ...]] = []
        if first > 0 and history:
            pieces.append(self.observations[0])
        for t in range(first, turns):
            pieces += [self.observations[t], self.actions[t]]
        return [*pieces, self.observations[turns]]


class Format(Protocol):
    """What turns texts into pieces and pieces into a context."""

    @property
    def stop(self) -> tuple[int, ...]: ...
    def observation(self, text: str, turn: int) -> tuple[int, ...]: ...
    def command(self, text: str) -> tuple[int, ...]: ...
    def context(self, conversation: Conversation) -> tuple[int, ...]: ...
    def text(self, tokens: Sequence[int]) -> str: ...

    @property
    def cue(self) -> int: ...
    @property
    def lead(self) -> str: ...  # what an action's text begins with, put in front of it


class PlainFormat:
    """A running text, as a text game prints it; `examples` are (observation, action) pairs shown first."""

    lead = " "

    def __init__(
        self,
        tokenizer: Any,
        examples: Sequence[Sequence[tuple[str, str]]] = (),
        history: int | None = None,
        cue: str = ">",
        system: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.history = history
        self._cue = self._encode(cue)
        shown = f"{system}\n\n" if system else ""
        for episode in examples:
            shown += "".join(f"{observation}\n{cue} {action}\n" for observation, action in episode) + "\n"
        start = tuple(tokenizer("").input_ids)  # a beginning-of-text token where the tokenizer adds one
        self.prefix = start + self._encode(shown) if shown else start
        self.newline = self._encode("\n")

    @cached_property
    def stop(self) -> tuple[int, ...]:
        """The newline, every other token that holds one, and the end of sequence."""
        every = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))])
        eos = self.tokenizer.eos_token_id
        found = [self.newline[-1], *(i for i, text in enumerate(every) if "\n" in text)]
        return tuple(dict.fromkeys([*found, *([] if eos is None else [eos])]))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    @property
    def cue(self) -> int:
        return len(self._cue)

    def observation(self, text: str, turn: int) -> tuple[int, ...]:
        return self._encode(f"{text}\n")

    def command(self, text: str) -> tuple[int, ...]:
        return self._encode(self.lead + text) + self.newline

    def context(self, conversation: Conversation) -> tuple[int, ...]:
        pieces = [self.prefix]
        seen = conversation.window(self.history)
        turns = (len(seen) - 1) // 2
        lead = len(seen) - 1 - 2 * turns  # a first observation kept outside the window stands without an action
        for i, piece in enumerate(seen):
            if i >= lead and (i - lead) % 2 == 1:
                pieces.append(self._cue)
            pieces.append(piece)
        return tuple(t for piece in (*pieces, self._cue) for t in piece)

    def text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True)).split("\n")[0].strip()


class ChatFormat:
    """The tokenizer's chat template, taken apart once into what stands before, between and after the messages."""

    lead = ""
    _MARK = "\x02observation\x03"
    _REPLY = "\x02reply\x03"

    def __init__(self, tokenizer: Any, system: str = "") -> None:
        if getattr(tokenizer, "chat_template", None) is None:
            raise ValueError('the tokenizer has no chat template: use `format = "plain"`, or a chat model')
        self.tokenizer = tokenizer
        lead = [{"role": "system", "content": system}] if system else []
        user, reply = {"role": "user", "content": self._MARK}, {"role": "assistant", "content": self._REPLY}
        first = self._render([*lead, user])
        both = self._render([*lead, user, reply, user])
        before, self._after_user = first.split(self._MARK)
        opening = before + self._MARK + self._after_user + self._REPLY
        if not both.startswith(opening) or not both.endswith(self._after_user):
            raise ValueError(
                "this chat template writes earlier turns differently from the newest one, so sampled tokens could "
                'not be kept as they are: use `format = "plain"` or a template whose turns only append'
            )
        between = both[len(opening) :].split(self._MARK)[0]
        closing = self._encode(between)[0]
        closer = tokenizer.decode([closing])
        if closing not in tokenizer.all_special_ids and closing not in tokenizer.added_tokens_decoder:
            raise ValueError(
                f"this chat template ends a turn by {closer!r}, ordinary text: an action's end could not be told"
            )
        if not between.startswith(closer):
            raise ValueError(
                f"this chat template's end of turn {between[:20]!r} does not begin with the token {closer!r}"
            )
        # A sampled stop token has written the turn's end already; the next piece goes on behind it.
        self._first, self._next = before, between[len(closer) :]
        eos = tokenizer.eos_token_id
        self.stop: tuple[int, ...] = tuple(dict.fromkeys([closing, *([] if eos is None else [eos])]))
        self._cue_length = max(1, len(self._encode(self._after_user)))

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            roles = ", ".join(m["role"] for m in messages)
            raise ValueError(f"the tokenizer's chat template refuses messages of the roles {roles}: {error}") from None

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    @property
    def cue(self) -> int:
        return self._cue_length

    def observation(self, text: str, turn: int) -> tuple[int, ...]:
        return self._encode((self._first if turn == 0 else self._next) + text + self._after_user)

    def command(self, text: str) -> tuple[int, ...]:
        return self._encode(text) + self.stop[:1]

    def context(self, conversation: Conversation) -> tuple[int, ...]:
        return tuple(t for piece in conversation.window(None) for t in piece)

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode([t for t in tokens if t not in self.stop], skip_special_tokens=True).strip()


def choices(form: Format, commands: Sequence[str]) -> Choices:
    """The listed commands as tokens of this format (duplicates dropped, order kept)."""
    unique = tuple(dict.fromkeys(commands))
    return Choices(unique, tuple(form.command(c) for c in unique))
