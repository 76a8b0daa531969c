"""Prompts: pieces encoded once, windows of history, the chat template taken apart."""

from __future__ import annotations

import pytest

from rtmc.train.prompt import ChatFormat, Conversation, PlainFormat
from tests import tiny

OBSERVATIONS = ["You are in a room.", "You arrive at desk 1. On the desk 1, you see a pen 1.", "You pick up the pen 1."]
ACTIONS = ["go to desk 1", "take pen 1 from desk 1"]


def _played(form: PlainFormat | ChatFormat, turns: int = 2) -> Conversation:
    played = Conversation()
    for t in range(turns + 1):
        played.observations.append(form.observation(OBSERVATIONS[t], t))
        if t < turns:
            played.actions.append(form.command(ACTIONS[t]))
    return played


def _text(form: PlainFormat | ChatFormat, tokens: tuple[int, ...]) -> str:
    return form.tokenizer.decode(tokens)


def test_plain_text_of_a_whole_conversation() -> None:
    form = PlainFormat(tiny.tokenizer())
    assert _text(form, form.context(_played(form))) == (
        "You are in a room.\n> go to desk 1\n"
        "You arrive at desk 1. On the desk 1, you see a pen 1.\n> take pen 1 from desk 1\n"
        "You pick up the pen 1.\n>"
    )


def test_history_keeps_the_first_observation_and_the_last_turns() -> None:
    form = PlainFormat(tiny.tokenizer(), history=1)
    assert _text(form, form.context(_played(form))) == (
        "You are in a room.\n"
        "You arrive at desk 1. On the desk 1, you see a pen 1.\n> take pen 1 from desk 1\n"
        "You pick up the pen 1.\n>"
    )
    alone = PlainFormat(tiny.tokenizer(), history=0)
    assert _text(alone, alone.context(_played(alone))) == "You pick up the pen 1.\n>"
    longer = PlainFormat(tiny.tokenizer(), history=5)
    assert longer.context(_played(longer)) == PlainFormat(tiny.tokenizer()).context(_played(longer))


def test_examples_and_system_stand_first() -> None:
    form = PlainFormat(
        tiny.tokenizer(), [[("See.", "look"), ("Seen.", "help")], [("A", "b")]], system="Play.", cue="?>"
    )
    assert _text(form, form.context(_played(form, 0))) == (
        "Play.\n\nSee.\n?> look\nSeen.\n?> help\n\nA\n?> b\n\nYou are in a room.\n?>"
    )


def test_sampled_tokens_are_kept_as_they_are() -> None:
    """A word split otherwise than the tokenizer would must survive in later contexts."""
    words = tiny.tokenizer()
    odd = tuple(t for letter in " look" for t in words(letter, add_special_tokens=False).input_ids)
    assert odd != tuple(words(" look", add_special_tokens=False).input_ids)
    form = PlainFormat(words)
    played = Conversation([form.observation("A", 0), form.observation("B", 1)], [(*odd, form.stop[0])])
    context = form.context(played)
    assert any(context[i : i + len(odd)] == odd for i in range(len(context)))


def test_chat_equals_the_template() -> None:
    words = tiny.tokenizer()
    form = ChatFormat(words, system="Play.")
    messages = [{"role": "system", "content": "Play."}]
    for t, observation in enumerate(OBSERVATIONS):
        messages.append({"role": "user", "content": observation})
        text = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert _text(form, form.context(_played(form, t))) == text
        if t < len(ACTIONS):
            messages.append({"role": "assistant", "content": ACTIONS[t]})


def test_chat_pieces_only_grow() -> None:
    form = ChatFormat(tiny.tokenizer())
    shorter = form.context(_played(form, 1))
    longer = form.context(_played(form, 2))
    assert longer[: len(shorter)] == shorter
    assert longer[len(shorter) : len(shorter) + len(form.command(ACTIONS[1]))] == form.command(ACTIONS[1])


def test_chat_needs_a_template_whose_turns_only_append() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        ChatFormat(tiny.tokenizer(chat=False))
    words = tiny.tokenizer()
    words.chat_template = (
        "{% for m in messages %}{% if loop.last or m['role'] != 'assistant' %}<{{ m['role'] }}>{{ m['content'] }}"
        "{% else %}(earlier){{ m['content'] }}{% endif %}{% endfor %}<assistant>"
    )
    with pytest.raises(ValueError, match="differently"):
        ChatFormat(words)


def test_a_turn_may_be_closed_by_another_token_than_the_end_of_sequence() -> None:
    words = tiny.tokenizer()
    words.eos_token = "<|im_start|>"
    form = ChatFormat(words)
    assert form.stop[0] == words.convert_tokens_to_ids("<|im_end|>")
    messages = [{"role": "user", "content": OBSERVATIONS[0]}, {"role": "assistant", "content": ACTIONS[0]}]
    messages.append({"role": "user", "content": OBSERVATIONS[1]})
    text = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert _text(form, form.context(_played(form, 1))) == text
    words.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    with pytest.raises(ValueError, match="ordinary text"):
        ChatFormat(words)


def test_a_template_that_refuses_a_role_is_named() -> None:
    words = tiny.tokenizer()
    words.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="refuses messages of the roles system, user: no system"):
        ChatFormat(words, system="Play.")


def test_every_token_with_a_newline_stops_plain_text() -> None:
    form = PlainFormat(tiny.tokenizer())
    for token in range(len(form.tokenizer)):
        assert (token in form.stop) == ("\n" in form.tokenizer.decode([token]) or token == form.tokenizer.eos_token_id)
    assert form.stop[0] == form.newline[-1]
    assert form.text((*form.command("go on"), *form.command("and on"))) == "go on"


def test_text_drops_stop_tokens() -> None:
    form = PlainFormat(tiny.tokenizer())
    assert form.text(form.command("go to desk 1")) == "go to desk 1"
