"""Signatures that look at text alone: similarity, prefix, vectors; and options by name."""

import json
import random
from difflib import SequenceMatcher

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc import Rollout, SignatureError, Step, register_signature, tabulate
from rtmc.signatures import get_signature, signature_names
from rtmc.signatures.embedding import EmbeddingSignature, clusters, ngrams
from rtmc.signatures.similarity import SimilaritySignature, components, first_fit, resemblance


def rollouts_of(texts, task="t", name="r"):
    """One rollout a text, each a single step."""
    return [
        Rollout(task, f"{name}{n}", [Step(text, "go", answer="end")], reward=float(n % 2))
        for n, text in enumerate(texts)
    ]


def states_of(signature, rollouts):
    table = tabulate(rollouts, signatures=signature)
    return [table.state_names[i] for i in table.state.tolist()]


# similarity


@pytest.mark.parametrize("parity", ["verl_agent", None])
def test_first_fit_gives_the_peers_groups(shared, parity):
    for case in json.loads((shared / "vectors" / "gigpo_similarity.json").read_text())["cases"]:
        texts, threshold = case["inputs"]["obs"], case["inputs"]["threshold"]
        expected = case["outputs"]["cluster_labels_by_first_appearance"]
        assert first_fit(texts, resemblance(threshold, parity)) == expected
        keys = states_of(SimilaritySignature(threshold, parity), rollouts_of(texts))
        assert [keys.index(key) for key in keys] == [expected.index(label) for label in expected]


@settings(max_examples=60, deadline=None)
@given(st.text("ab ", max_size=25), st.text("ab ", max_size=25), st.floats(0, 1))
def test_ratios_by_their_definition(a, b, threshold):
    assert resemblance(threshold, "verl_agent")(a, b) == (SequenceMatcher(None, a, b).ratio() >= threshold)
    common = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]  # longest common subsequence
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            common[i + 1][j + 1] = common[i][j] + 1 if x == y else max(common[i][j + 1], common[i + 1][j])
    ratio = 2 * common[-1][-1] / (len(a) + len(b)) if a or b else 1.0
    if abs(ratio - threshold) > 1e-9:
        assert resemblance(threshold)(a, b) == (ratio >= threshold)


def test_the_two_ratios_disagree():
    # Python's documentation of SequenceMatcher: 0.25, and 0.5 with the arguments exchanged. The longest common
    # subsequence has 2 of 4 + 4 characters either way.
    by_difflib, by_rapidfuzz = resemblance(0.4, "verl_agent"), resemblance(0.4)
    assert (by_difflib("tide", "diet"), by_difflib("diet", "tide")) == (False, True)
    assert (by_rapidfuzz("tide", "diet"), by_rapidfuzz("diet", "tide")) == (True, True)


CHAIN = ["aaaaaaaaaa", "aaaaaaaaab", "aaaaaaaabb", "aaaaaaabbb", "zzzzzzzzzz"]


def test_greedy_groups_depend_on_the_order_and_components_do_not():
    forward = states_of("similarity:threshold=0.9", rollouts_of(CHAIN))
    middle = states_of("similarity:threshold=0.9", rollouts_of([CHAIN[i] for i in (1, 0, 2, 3, 4)]))
    assert len(set(forward)) == 3
    assert [forward[i] for i in (0, 1)] == ["aaaaaaaaaa"] * 2
    assert [middle[i] for i in (0, 1, 2)] == ["aaaaaaaaab"] * 3
    free = {}
    for seed in range(5):
        order = random.Random(seed).sample(CHAIN, len(CHAIN))
        found = dict(zip(order, states_of("similarity:threshold=0.9,order=free", rollouts_of(order)), strict=True))
        free.setdefault("keys", found)
        assert found == free["keys"]
    assert set(free["keys"].values()) == {"aaaaaaaaaa", "zzzzzzzzzz"}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("ab", max_size=5), max_size=8))
def test_components_are_those_of_the_graph(texts):
    resembles = resemblance(0.7)
    found = components(texts, resembles)
    reach = {t: {u for u in texts if u == t or resembles(t, u)} for t in texts}
    for _ in texts:
        reach = {t: set().union(*(reach[u] for u in near)) for t, near in reach.items()}
    assert found == {t: min(reach[t]) for t in texts}


def test_components_that_meet_late_are_one():
    edges = {"bc", "ad", "ce", "de"}
    assert components("abcde", lambda a, b: a + b in edges) == dict.fromkeys("abcde", "a")


def test_tasks_are_grouped_apart_and_unknown_text_is_told():
    signature = SimilaritySignature(order="free")
    signature.fit(rollouts_of(["x"], "one"))
    with pytest.raises(SignatureError, match="task 'two' has an observation that was not fitted"):
        signature.state(rollouts_of(["x"], "two")[0]).key()


# tokens


def test_a_prefix_is_shared_until_it_differs():
    def rollout(name, ids, answers=("b", "c", "d")):
        steps = [Step(o, "same", answer=a) for o, a in zip(("a", *answers), answers, strict=False)]
        return Rollout("t", name, steps, token_ids=ids)

    one = rollout("1", [[1], [2, 3], [4]])
    two = rollout("2", [[1], [2, 4], [4]])
    three = rollout("3", [[1], [2, 3], [4]], ("b", "x", "d"))
    table = tabulate([one, two, three], signatures="tokens")
    state = table.state.view(3, 3).tolist()
    action = table.action.view(3, 3).tolist()
    assert state[0][:2] == state[1][:2] == state[2][:2]
    assert len({state[0][2], state[1][2], state[2][2]}) == 3
    assert action[0][1] == action[2][1] != action[1][1]
    assert table.next_state.view(3, 3)[:, 1].tolist() == [row[2] for row in state]
    texts = tabulate([rollout("1", None), rollout("2", None)], signatures="tokens").state.view(2, 3)
    assert texts[0].tolist() == texts[1].tolist()


def test_texts_do_not_run_together():
    a = Rollout("t", "a", [Step("c", "x", answer="")], system="ab")
    b = Rollout("t", "b", [Step("bc", "x", answer="")], system="a")
    table = tabulate([a, b], signatures="tokens")
    assert table.state[0] != table.state[1]


# embedding


def test_clusters_hold_what_is_close():
    angle = np.radians([0, 10, 20, 90, 95, 180])
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1) * [[1], [5], [2], [1e-200], [1e200], [3]]
    labels = clusters(vectors, 6, float(np.cos(np.radians(21))))
    assert [labels.index(label) for label in labels] == [0, 0, 0, 3, 3, 5]
    labels = clusters(vectors, 6, float(np.cos(np.radians(12))))
    assert len(set(labels)) == 4  # complete linkage: 0 and 20 degrees are too far apart
    assert clusters(np.zeros((2, 3)), 2, 0.9)[0] == clusters(np.zeros((2, 3)), 2, 0.9)[1]
    zero, other = clusters([[0.0, 0.0], [1.0, 0.0]], 2, 0.5)
    assert zero != other
    assert clusters(np.zeros((0, 3)), 0, 0.9) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abc ", max_size=12), min_size=1, max_size=10), st.integers(0, 9), st.floats(-1, 1))
def test_every_two_of_a_cluster_are_close_in_any_order(texts, seed, threshold):
    signature = EmbeddingSignature("ngrams", threshold)
    signature.fit(rollouts_of(texts))
    keys = {text: signature.known("state", "t", text) for text in texts}
    shuffled = random.Random(seed).sample(texts, len(texts))
    signature.fit(rollouts_of(shuffled))
    assert keys == {text: signature.known("state", "t", text) for text in texts}
    vectors = {text: ngrams([text])[0] for text in texts}
    for a in texts:
        for b in texts:
            lengths = np.linalg.norm(vectors[a]) * np.linalg.norm(vectors[b])
            if keys[a] == keys[b] and lengths > 0:
                assert vectors[a] @ vectors[b] / lengths >= threshold - 1e-6


def test_the_callers_vectors_and_actions():
    places = {"kitchen": (1.0, 0.0), "cuisine": (0.99, 0.1), "garden": (0.0, 1.0), "end": (-1.0, 0.0), "go": (1.0, 1.0)}
    signature = EmbeddingSignature(lambda texts: [places[text] for text in texts], 0.9, actions=True)
    keys = states_of(signature, rollouts_of(["kitchen", "garden", "cuisine"]))
    assert keys == ["cuisine", "garden", "cuisine"]
    assert len(set(states_of("embedding", iter(rollouts_of(["kitchen", "garden", "cuisine"]))))) == 3


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda texts: np.zeros((len(texts) + 1, 2)), r"array \(2, d\) for 2 texts; got \(3, 2\)"),
        (lambda texts: np.zeros(len(texts)), r"got \(2,\)"),
        (lambda texts: np.full((len(texts), 2), np.nan), "not finite"),
    ],
)
def test_vectors_that_are_none(made, message):
    with pytest.raises(SignatureError, match=message):
        EmbeddingSignature(made).fit(rollouts_of(["x"]))


def test_a_text_that_was_not_fitted():
    with pytest.raises(SignatureError, match="observation that was not fitted"):
        EmbeddingSignature().state(rollouts_of(["x"])[0]).key()


# options


def test_options_by_name():
    assert get_signature("swe:hash_chars=0,bucket=50").bucket == 50
    assert get_signature("swe", hash_chars=0).hash_chars == 0
    assert get_signature("swe:state_classes=view+modify").state_classes == {"view", "modify"}
    assert get_signature("similarity: threshold=0.5 , parity=verl_agent").threshold == 0.5
    assert get_signature("qa:documents=false").documents is False
    assert get_signature("similarity:parity=none").order == "first"
    built = {"env", "text", "swe", "qa", "household", "similarity", "tokens", "embedding"}
    assert built <= set(signature_names())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("swe:hash_char=0", "unknown option of the signature `swe`: 'hash_char'; did you mean `hash_chars`"),
        ("swe:hash_chars", "'hash_chars' is no option; write `swe:option=value"),
        ("swe:bucket=1,bucket=2", "`bucket` is given twice"),
        ("text:x=1", "the signature `text` has no options; got `x`"),
        ("sve:x=1", "unknown signature 'sve'; did you mean"),
        ("similarity:threshold=2", "`threshold` must be a number from 0 to 1; got 2"),
        ("similarity:order=last", '`order` must be "first" or "free"'),
        ("similarity:parity=trl", "`parity` must be"),
        ("embedding:encoder=bert", '`encoder` must be a function, "ngrams" or "wordllama"'),
        ("embedding:threshold=x", "`threshold` must be a cosine"),
        ("embedding:actions=1", "`actions` must be true or false"),
    ],
)
def test_options_that_are_wrong(name, message):
    with pytest.raises(SignatureError, match=message):
        get_signature(name)


def test_options_of_a_users_own_and_of_an_object():
    class Own(SimilaritySignature):
        def __init__(self, depth=1):
            super().__init__()
            self.depth = depth

    register_signature("own-with-options", Own)
    assert get_signature("own-with-options:depth=3").depth == 3
    with pytest.raises(TypeError, match="made already"):
        get_signature(Own(), depth=2)


def test_packages_that_are_missing_are_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    with pytest.raises(ImportError, match=r"pip install 'rtmc\[report\]'"):
        SimilaritySignature()
    assert SimilaritySignature(parity="verl_agent").threshold == 0.95
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(ImportError, match="pip install wordllama"):
        EmbeddingSignature("wordllama")


def test_a_command_that_is_held_as_text_and_as_a_call_is_told_once():
    call = {"type": "function", "function": {"name": "bash", "arguments": {"command": "ls -F"}}}
    action = get_signature("text").action
    assert action(Step("", "ls -F\n", tool_calls=[call])) == "ls -F"
    assert action(Step("", "", tool_calls=[call])) == 'bash({"command": "ls -F"})'
    assert action(Step("", "I look.", tool_calls=[call])) == 'I look.\nbash({"command": "ls -F"})'
