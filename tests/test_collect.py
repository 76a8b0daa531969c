"""Collection: groups that start alike, episodes that do not depend on their neighbours, failures kept as data."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

import rtmc.gymenvs  # noqa: F401 - registers the environments
from rtmc.rollouts import Stop
from rtmc.train.collect import Acting, Collector, Episode, successes
from rtmc.train.config import Lora
from rtmc.train.models import with_lora
from rtmc.train.policy import Policy
from rtmc.train.prompt import ChatFormat, PlainFormat
from tests import copyworld, tiny

HOUSEHOLD = {"split": "tiny", "max_turns": 4, "observation": "knowledge"}


def _collector(chat: bool = False, history: int | None = 0, env_id: str | None = None, **kwargs: object) -> Collector:
    words = tiny.tokenizer()
    policy = Policy(with_lora(tiny.model(vocab=len(words)), Lora(rank=2, layers=1), 0), words)
    form = ChatFormat(words) if chat else PlainFormat(words, history=history)
    if env_id is None:
        return Collector(lambda: gymnasium.make("rtmc/Household-v0", **HOUSEHOLD, **kwargs), policy, form)
    copyworld.register()
    return Collector(lambda: gymnasium.make(env_id, disable_env_checker=True, **kwargs), policy, form)


def _trace(episode: Episode) -> list[tuple[str, str | None, str]]:
    return [(s.action, s.state_key, s.observation) for s in episode.rollout.steps]


def test_a_group_starts_alike_and_groups_differ() -> None:
    groups = _collector().play([3, 4, 5], 4, Acting(), draw=(0,))
    for group in groups:
        assert len({e.rollout.task_id for e in group}) == 1
        assert len({e.rollout.steps[0].observation for e in group}) == 1
        assert len({e.rollout.rollout_id for e in group}) == 4
    assert len({group[0].rollout.task_id for group in groups}) == 3


@pytest.mark.parametrize("mode", ["choice", "free"])
def test_an_episode_does_not_depend_on_what_is_played_beside_it(mode: str) -> None:
    acting = Acting(mode, max_new_tokens=5)
    together = _collector().play([3, 4], 3, acting, draw=(7,))
    alone = _collector().play([4], 2, acting, draw=(7,))
    for a, b in zip(together[1][:2], alone[0], strict=True):
        assert _trace(a) == _trace(b)
        for x, y in zip(a.turns, b.turns, strict=True):
            assert x.tokens == y.tokens
            np.testing.assert_allclose(x.logprob, y.logprob, atol=3e-5)


@pytest.mark.parametrize(
    ("mode", "chat", "history"),
    [("choice", False, 0), ("choice", True, None), ("free", False, 2), ("free", True, None)],
)
@pytest.mark.parametrize("adapt", ["turn", "all"])
def test_what_is_trained_is_what_was_sampled(mode: str, chat: bool, history: int | None, adapt: str) -> None:
    """The recorded log-probabilities are those of the recorded tokens, and the mask covers the sampled ones alone."""
    collector = _collector(chat, history)
    (group,) = collector.play([3], 3, Acting(mode, ("help", "look"), max_new_tokens=6, adapt=adapt), draw=(1,))
    for episode in group:
        assert len(episode.turns) == len(episode.rollout.steps)
        for turn, step in zip(episode.turns, episode.rollout.steps, strict=True):
            with torch.no_grad():
                flat = collector.policy.score([turn.request]).logprob.numpy()
            np.testing.assert_allclose(turn.logprob[turn.sampled], flat[turn.edges[turn.sampled]], atol=3e-5)
            assert (turn.logprob[~turn.sampled] == 0).all()
            assert len(turn.tokens) == len(turn.logprob) == len(turn.sampled) == len(turn.edges)
            assert turn.tokens[-1] in collector.form.stop
            assert step.tokens == int(turn.sampled.sum())
            assert collector.form.text(turn.tokens) == step.action
            assert turn.request.live == (len(turn.request.context) if adapt == "all" else collector.form.cue)


def test_contexts_hold_the_sampled_tokens_of_earlier_turns() -> None:
    (group,) = _collector(history=None).play([3], 2, Acting("free", max_new_tokens=4), draw=(1,))
    for episode in group:
        for earlier, later in zip(episode.turns, episode.turns[1:], strict=False):
            start = len(earlier.request.context)
            assert later.request.context[:start] == earlier.request.context
            assert later.request.context[start : start + len(earlier.tokens)] == earlier.tokens


def test_hidden_commands_are_never_chosen_and_equal_questions_are_asked_once() -> None:
    collector = _collector()
    groups = collector.play([3, 4, 5], 6, Acting("choice", ("help", "look", "inventory", "examine")), draw=(0,))
    actions = {s.action.split()[0] for g in groups for e in g for s in e.rollout.steps}
    assert not actions & {"help", "look", "inventory", "examine"}
    distinct = {t.request.key for g in groups for e in g for t in e.turns}
    assert collector.answered == len(distinct) < collector.asked


def test_greedy_members_agree() -> None:
    (group,) = _collector().play([3], 3, Acting(greedy=True), draw=(0,))
    assert len({tuple(_trace(e)) for e in group}) == 1


def test_outcomes_and_ends() -> None:
    groups = _collector(env_id=copyworld.ID).play(list(range(12)), 4, Acting(), draw=(0,))
    found = successes(groups)
    flat = [e.rollout for g in groups for e in g]
    assert 0 < found.sum() < len(found)
    for rollout, success in zip(flat, found, strict=True):
        assert rollout.reward == float(success)
        assert rollout.stop is (Stop.SUCCESS if success else Stop.FAILURE)
    groups = _collector().play([3], 4, Acting("choice", ("go", "take", "open", "move")), draw=(0,))
    assert all(e.rollout.stop is Stop.TRUNCATED for e in groups[0])


def test_a_world_that_breaks_is_data() -> None:
    groups = _collector(env_id=copyworld.ID, turns=2, fail_at=1).play(list(range(6)), 4, Acting(), draw=(0,))
    broken = [e.rollout for g in groups for e in g if e.rollout.error]
    assert broken
    assert all(
        r.error == "RuntimeError: the world broke" and r.stop is Stop.ERROR and np.isnan(r.reward) for r in broken
    )


def test_a_task_that_cannot_start_is_data() -> None:
    ((episode,),) = _collector(env_id=copyworld.ID, fail_at=-1).play([0], 1, Acting(), draw=(0,))
    assert episode.rollout.error == "reset: RuntimeError: the world broke"
    assert episode.rollout.steps == []


@pytest.mark.parametrize("mode", ["choice", "free"])
def test_a_context_that_leaves_the_model_no_room_ends_the_episode(mode: str) -> None:
    collector = _collector(history=None)  # a conversation that only grows
    collector.policy.limit = 300
    (group,) = collector.play([3], 3, Acting(mode, max_new_tokens=20), draw=(0,))
    for episode in group:
        assert episode.rollout.stop is Stop.TRUNCATED
        assert 0 < len(episode.turns) < 4
        assert all(len(t.request.context) + 20 <= 300 for t in episode.turns)


def test_hiding_every_command_is_refused() -> None:
    with pytest.raises(ValueError, match="hides every command"):
        _collector(env_id=copyworld.ID).play([0], 1, Acting("choice", ("mug", "pen", "egg", "key")), draw=(0,))


def test_sampled_ids_are_written_for_free_text_alone() -> None:
    ((free,),) = _collector().play([3], 1, Acting("free", max_new_tokens=4), draw=(0,))
    assert free.rollout.token_ids == [list(t.request.sampled) for t in free.turns]
    ((chosen,),) = _collector().play([3], 1, Acting(), draw=(0,))
    assert chosen.rollout.token_ids is None
