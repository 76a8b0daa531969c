"""Scores of reference answers against one plain forward pass a turn, and what tokens they count."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rtmc.train import scoring
from rtmc.train.agent import ModelAgent
from rtmc.train.explore import explore
from rtmc.train.forest import adapter_off
from rtmc.train.prompt import Conversation, PlainFormat
from rtmc.train.references import Reference
from rtmc.train.scoring import AnswerScorer, Target, target_of
from rtmc.train.turn_forest import Forest, Place
from tests import tiny
from tests.explore_world import Messenger, messenger, search_qa

# float32, products summed in another order: what the tests of the policy allow for a log-probability.
TOLERANCE = 3e-5
REFERENCES = {
    "words": Reference(("Kesh",)),
    "one token": Reference(("a",), "say {}!"),
    "unicode": Reference(("Ærø 北京 🏠",), "答え: {}。"),
    "long": Reference(("the mug on shelf 2, beside the countertop",), "{}"),
}


def byte_spans(tokenizer, ids):
    """(begin, end) of each token in the text's bytes: in a byte-level tokenizer each character of a token is a byte."""
    lengths = [len(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    ends = np.cumsum(lengths)
    return list(zip((ends - lengths).tolist(), ends.tolist(), strict=True))


def plain_score(agent: ModelAgent, context: tuple[int, ...], reference: Reference) -> float:
    """Mean log-probability of the answer's tokens, without any of the code under test: text, bytes, one sequence."""
    policy, tokenizer = agent.scorer.policy, agent.scorer.policy.tokenizer
    before, after = reference.wrapper.split("{}")
    before = (" " if isinstance(agent.form, PlainFormat) else "") + before
    answer = reference.answers[0]
    ids = tokenizer(before + answer + after, add_special_tokens=False).input_ids
    start, end = len(before.encode()), len((before + answer).encode())
    counted = [i for i, (a, b) in enumerate(byte_spans(tokenizer, ids)) if a < end and b > start]
    sequence = torch.tensor([[*context, *ids]])
    base = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    live = len(context) if agent.acting.adapt == "all" else agent.form.cue
    frozen = len(context) - live
    with torch.no_grad():
        if policy.model is base or agent.acting.adapt == "all":
            logits = base(input_ids=sequence, use_cache=False).logits[0]
        else:  # the base model reads what stands before the cue, the adapted one the rest
            with adapter_off(policy.model):
                cache = base(input_ids=sequence[:, :frozen], use_cache=True)[policy.forward.cache_name]
            rest = base(input_ids=sequence[:, frozen:], **{policy.forward.cache_name: cache}).logits[0]
            logits = torch.cat([rest.new_zeros(frozen, rest.shape[1]), rest])
    logprob = (logits.double() / policy.temperature).log_softmax(-1)
    return float(np.mean([logprob[len(context) + i - 1, ids[i]] for i in counted]))


def places(forest: Forest) -> list[tuple[Place, Reference]]:
    found = [(root.place, root.reference) for root in forest.roots]
    return found + [(node.after, forest.roots[node.after.task].reference) for node in forest.nodes]


def worst(agent: ModelAgent, forest: Forest) -> float:
    """The largest difference in mean log-probability between a forest's scores and plain forward passes."""
    return max(
        abs(math.log(place.score) - plain_score(agent, agent.form.context(place.history), reference))
        for place, reference in places(forest)
    )


def grown(agent: Messenger, reference: Reference) -> Forest:
    """Trees of two tasks with branches at several depths."""
    return explore(
        agent, search_qa, [0, 1], budget=60, chains=2, rule="random", candidates=2, reference=reference, key=(1,)
    )


@pytest.mark.parametrize("adapt", ["turn", "all"])
@pytest.mark.parametrize(
    ("adapter", "chat", "kind", "reference"),
    [
        ("none", False, "llama", "words"),
        ("fresh", True, "qwen2", "unicode"),
        ("moved", False, "qwen3", "one token"),
        ("moved", True, "llama", "long"),
    ],
)
def test_scores_equal_plain_forward_passes(adapt, adapter, chat, kind, reference):
    agent = messenger(adapter, adapt, chat, kind, temperature=1.0 if chat else 0.7)
    forest = grown(agent, REFERENCES[reference])
    nodes = forest.nodes
    assert {node.depth for node in nodes} == {0, 1, 2}
    assert len({node.parent for node in nodes}) < len(nodes)  # branches share histories
    assert any(node.after.observation == "" for node in nodes)  # after an answer nothing is said
    assert all(0 < place.score <= 1 for place, _ in places(forest))
    assert worst(agent, forest) < TOLERANCE


def test_the_adapter_and_the_split_matter():
    """Were the split ignored, or the adapter, the comparison above would not notice: so the four must differ."""
    scores = []
    for adapter, adapt in (("none", "turn"), ("moved", "turn"), ("moved", "all")):
        agent = messenger(adapter, adapt)
        history = Conversation([agent.form.observation("Question: where?", 0)])
        scores.append(agent.score([history], [REFERENCES["words"]])[0])
    assert min(abs(math.log(a / b)) for a in scores for b in scores if a is not b) > 30 * TOLERANCE
    fresh = [messenger("fresh", adapt) for adapt in ("turn", "all")]
    for agent in fresh:
        history = Conversation([agent.form.observation("Question: where?", 0)])
        assert agent.score([history], [REFERENCES["words"]])[0] == pytest.approx(scores[0], rel=TOLERANCE)


@pytest.mark.parametrize(
    "fault",
    [
        lambda t: Target(t.tokens, t.first + 1),  # the answer's first token does not count
        lambda t: Target(t.tokens, t.first - 1),  # the wrapper's last one does
        lambda t: Target(t.tokens[:-1], t.first),  # the answer's last token does not
    ],
)
def test_a_mask_off_by_one_is_found(fault, monkeypatch):
    monkeypatch.setattr(scoring, "target_of", lambda *given: fault(target_of(*given)))
    agent = messenger()
    assert worst(agent, grown(agent, REFERENCES["words"])) > 100 * TOLERANCE


def test_targets_by_hand():
    tokenizer = tiny.tokenizer()

    def pieces(*given):
        target = target_of(tokenizer, *given)
        return tokenizer.convert_ids_to_tokens(target.tokens), target.first

    # The blank of the wrapper and the answer are one token, `Ġto`: it counts.
    tokens, first = pieces("to", "go {}")
    assert (tokens[0], tokens[first:]) == ("go", ["Ġto"])
    # Two characters of three bytes each: six tokens, none of the wrapper's.
    tokens, first = pieces("北京", "<{}>")
    assert (tokens[:first], len(tokens) - first) == (["<"], 6)
    # What follows the answer is not read.
    assert pieces("mug", "{} and much more") == pieces("mug", "{}")
    # The lead stands in front, as for an action of the format.
    assert pieces("mug", "{}", " ") == (["Ġmug"], 0)


def test_a_tokenizer_without_offsets_is_encoded_in_parts():
    class Slow:
        is_fast = False

        def __call__(self, text, add_special_tokens):
            assert not add_special_tokens

            class Encoded:
                input_ids = [ord(c) for c in text]  # noqa: RUF012 - made anew each call

            return Encoded

    assert target_of(Slow(), "ab", "<{}>") == Target((60, 97, 98), 1)
    with pytest.raises(ValueError, match="makes no token of the reference answer ''"):
        target_of(Slow(), "", "<{}>")


def test_every_prefix_is_read_once_and_small_packs_change_nothing():
    contexts = []
    for adapt in ("turn", "all"):
        agent = messenger("moved", adapt)
        forest = grown(agent, REFERENCES["words"])
        contexts = [agent.form.context(place.history) for place, _ in places(forest)]
        references = [reference for _, reference in places(forest)]
        agent.weights_changed()
        agent.scorer.policy.forget()
        before = agent.scorer.store.computed_tokens
        whole = agent.scorer.score(contexts, references)
        cut = agent.form.cue if adapt == "turn" else 1
        distinct = {context[:k] for context in contexts for k in range(1, len(context) - cut + 1)}
        assert agent.scorer.store.computed_tokens - before == len(distinct)
        assert len(distinct) < sum(map(len, contexts)) / 2
        small = messenger("moved", adapt, pack_tokens=16)
        np.testing.assert_allclose(small.scorer.score(contexts, references), whole, rtol=1e-4)


def test_several_wordings():
    agent = messenger()
    context = agent.form.context(Conversation([agent.form.observation("Question: where?", 0)]))
    both = Reference(("Kesh", "the mug on shelf 2"))
    one, other = (float(agent.scorer.score([context], [Reference((a,))])[0]) for a in both.answers)
    assert one != other
    assert agent.scorer.score([context], [both])[0] == pytest.approx(one, rel=1e-6)
    likeliest = AnswerScorer(agent.scorer.policy, agent.form, answers="max")
    assert likeliest.score([context], [both])[0] == pytest.approx(max(one, other), rel=1e-6)


def test_a_context_without_room_has_no_score():
    agent = messenger()
    short = agent.form.context(Conversation([agent.form.observation("where?", 0)]))
    long = agent.form.context(Conversation([agent.form.observation("where? " * 8, 0)]))
    needed = len(target_of(agent.scorer.policy.tokenizer, "Kesh", "<answer>{}</answer>", " ").tokens) - 1
    agent.scorer.policy.limit = len(long) + needed - 1
    found = agent.scorer.score([long, short], [REFERENCES["words"]] * 2)
    assert math.isnan(found[0])
    assert 0 < found[1] < 1
    agent.scorer.policy.limit += 1
    assert not math.isnan(agent.scorer.score([long], [REFERENCES["words"]])[0])


def test_weights_that_are_not_finite_are_refused():
    agent = messenger()
    with torch.no_grad():
        agent.scorer.policy.model.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite"):
        agent.score([Conversation([agent.form.observation("where?", 0)])], [REFERENCES["words"]])


def test_changed_weights_are_read_anew():
    agent = messenger("fresh", "all")
    history = Conversation([agent.form.observation("Question: where?", 0)])
    before = agent.score([history], [REFERENCES["words"]])[0]
    with torch.no_grad():
        for name, p in agent.scorer.policy.model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.05)
    agent.weights_changed()
    after = agent.score([history], [REFERENCES["words"]])[0]
    assert abs(math.log(after / before)) > 30 * TOLERANCE
    plain = plain_score(agent, agent.form.context(history), REFERENCES["words"])
    assert math.log(after) == pytest.approx(plain, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("answers", "wrapper", "error", "message"),
    [
        ((), "{}", ValueError, "at least one"),
        (("a", " "), "{}", ValueError, "none blank"),
        ("Kesh", "{}", TypeError, "sequence of texts, got 'Kesh'"),
        ((3,), "{}", TypeError, "sequence of texts"),
        (("a",), "no place", ValueError, r"one \{\} in it"),
        (("a",), "{} {}", ValueError, r"one \{\} in it"),
    ],
)
def test_bad_references(answers, wrapper, error, message):
    with pytest.raises(error, match=message):
        Reference(answers, wrapper)


def test_bad_scorers_and_agents():
    agent = messenger()
    policy, form = agent.scorer.policy, agent.form
    for name, value in {"adapt": "none", "answers": "all"}.items():
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            AnswerScorer(policy, form, **{name: value})
    with pytest.raises(ValueError, match="`entropy` must be"):
        ModelAgent(policy, form, entropy="nll")
    with pytest.raises(ValueError, match=r"one \{\} in it"):
        ModelAgent(policy, form, wrapper="answer")
    with pytest.raises(ValueError, match="at least one token"):
        agent.scorer.score([()], [REFERENCES["words"]])
