"""verifiers: real traces, built turn by turn by the engine's own graph, get credit on their nodes."""

import json
import math

import pytest

pytest.importorskip("verifiers", reason="needs verifiers: make test-engines")

from verifiers.v1.graph import prepare_turn
from verifiers.v1.semantic import ParentLink
from verifiers.v1.trace import WireTrace
from verifiers.v1.types import AssistantMessage, Response, ToolCall, ToolMessage, TurnTokens, UserMessage

import rtmc
import rtmc.adapters.verifiers as credit
from rtmc.errors import TableError


def trace(key="task", reward=None):
    made = WireTrace.model_validate(
        {"task": {"type": "T", "data": {"prompt": "go"}, "key": key}, "agent": {"config": {}}}
    )
    if reward is not None:
        made.record_reward("r", reward)
    return made


def turn(made, prompt, text, tokens, calls=()):
    """The model answers `prompt` with `text`, in `tokens` sampled tokens. Returns the prompt of the next turn."""
    pending = prepare_turn(made, prompt)
    message = AssistantMessage(content=text, tool_calls=list(calls) or None)
    seen = TurnTokens(
        prompt_ids=[i for n in pending.prefix_node_ids for i in made.nodes[n].token_ids] + [1],
        completion_ids=[2] * tokens,
        completion_logprobs=[-0.5] * tokens,
    )
    pending.commit(Response(id="r", created=0, model="m", message=message, finish_reason="stop", tokens=seen))
    return [*prompt, message]


def call(identity, **arguments):
    return ToolCall(id=identity, name="look", arguments=json.dumps(arguments))


def user(text):
    return UserMessage(content=text)


def chain(reward, second, identity="c1"):
    """Two turns: one tool call, then an answer."""
    made = trace(reward=reward)
    said = turn(made, [user("go")], "let me see", 3, [call(identity, at="box")])
    turn(made, [*said, ToolMessage(tool_call_id=identity, content="a key")], second, 2)
    return made


def sampled(made):
    return [node for node in made.nodes if node.sampled]


def test_chains_share_states_by_content():
    # The ids of the tool calls differ from run to run; what was said does not.
    traces = [chain(1.0, "take it", "c1"), chain(0.0, "leave it", "c2"), chain(0.0, "leave it", "c3")]
    found = credit.set_advantages(traces, "rtmc", gamma=1.0, prior_visits=0)
    # At the answer: take it 1, leave it 0, mean 1/3. The first turn is the same in all: nothing to compare.
    for made, answer in zip(traces, (2 / 3, -1 / 3, -1 / 3), strict=True):
        first, last = sampled(made)
        assert first.advantages == pytest.approx([0.0] * 3)
        assert last.advantages == pytest.approx([answer] * 2)
        assert made.branches[0].advantages == pytest.approx(
            [a for node in made.nodes for a in [0.0] * (len(node.mask) - sum(node.mask)) + (node.advantages or [])]
        )
        assert all(node.advantages is None for node in made.nodes if not node.sampled)
    assert found.visits.tolist() == [3.0] * 6


def test_the_same_words_after_another_past_are_another_state():
    traces = []
    for first in ("x", "y"):
        made = trace(reward=float(first == "x"))
        said = turn(made, [user("go")], first, 1)
        turn(made, [*said, user("and now?")], "the end", 1)
        traces.append(made)
    table, _ = credit.table_from_traces(traces)
    assert table.state[0] == table.state[2]
    assert table.state[1] != table.state[3]
    assert table.action[1] == table.action[3]


def forked():
    """go -> a -> {l1, l2}; go -> b -> l3; go -> l4: the tree of four leaves that the step table's page draws."""
    made = trace(reward=0.0)
    said = turn(made, [user("go")], "a", 1)
    turn(made, [*said, user("?")], "l1", 1)
    turn(made, [*said, user("?")], "l2", 2)
    other = turn(made, [user("go")], "b", 1)
    turn(made, [*other, user("?")], "l3", 1)
    turn(made, [user("go")], "l4", 1)
    return made


LEAVES = {"l1": 1.0, "l2": 0.0, "l3": 0.5, "l4": 0.0}


def leaf_reward(made, node):
    return LEAVES[made.nodes[node].message.content]


def test_branches_are_the_tree():
    made = forked()
    table, nodes = credit.table_from_traces([made], outcome=leaf_reward)
    texts = [made.nodes[node].message.content for _, node in nodes]
    assert texts == ["a", "l1", "l2", "b", "l3", "l4"]
    assert table.rollout.tolist() == [0, 0, 1, 2, 2, 3]
    assert table.parent.tolist() == [-1, 0, 0, -1, 3, -1]
    assert table.index.tolist() == [0, 1, 1, 0, 1, 0]
    assert table.outcome.tolist() == [1.0, 0.0, 0.5, 0.0]
    assert table.tokens.tolist() == [1, 1, 2, 1, 1, 1]
    found = credit.set_advantages([made], "dr_grpo", outcome=leaf_reward)
    mean = 1.5 / 4
    assert found.advantage.tolist() == pytest.approx([0.5 - mean, 1 - mean, -mean, 0.5 - mean, 0.5 - mean, -mean])


def test_tree_methods_get_what_they_need():
    made = forked()
    scores = {"a": 0.6, "l1": 0.9, "l2": 0.2, "b": 0.5, "l3": 0.5, "l4": 0.1}

    def keys(some, node):
        return {"answer_score": scores[some.nodes[node].message.content], "entropy": 1.0}

    table, _ = credit.table_from_traces([made], outcome=leaf_reward, keys=keys)
    for method in ("treehca", "at2po", "tree_grpo"):
        if method in {info.name for info in rtmc.estimators()}:
            found = credit.set_advantages([made], method, outcome=leaf_reward, keys=keys)
            assert found.advantage.tolist() == rtmc.advantages(table, method).tolist()
            assert len(set(found.advantage.tolist())) > 1


def test_contexts_of_one_attempt_are_one_rollout():
    made = trace(reward=1.0)
    turn(made, [user("go")], "a", 1)
    turn(made, [user("summary of all before")], "b", 1)
    other = trace(reward=0.0)
    turn(other, [user("go")], "c", 1)
    table, _ = credit.table_from_traces([made, other], unit="trace")
    assert table.n_rollouts == 2
    assert table.parent is None
    credit.set_advantages([made, other], "dr_grpo", unit="trace")
    assert [node.advantages for node in sampled(made)] == [[0.5], [0.5]]
    credit.set_advantages([made, other], "dr_grpo")
    assert [node.advantages for node in sampled(made)] == [[pytest.approx(1 / 3)]] * 2


def test_branches_that_do_not_train_and_prompts_without_an_answer():
    made = trace(reward=1.0)
    said = turn(made, [user("go")], "a", 1)
    prepare_turn(made, [*said, user("never answered")]).commit_prompt()
    turn(made, [*said, user("?")], "l1", 1)
    turn(made, [*said, user("shorten")], "attempt", 1)
    made.nodes[-1].semantic_parents.append(ParentLink(node=1, type="compaction_attempt"))
    prepare_turn(made, [*said, user("nor this")]).commit_prompt()
    table, nodes = credit.table_from_traces([made])
    assert [made.nodes[node].message.content for _, node in nodes] == ["a", "l1"]
    assert table.n_rollouts == 1
    credit.set_advantages([made], "grpo")
    attempt = next(node for node in made.nodes if node.message.content == "attempt")
    assert attempt.advantages is None


def test_failed_and_empty_traces():
    failed, silent = chain(None, "take it"), trace(reward=0.0)
    assert math.isnan(credit.table_from_traces([failed])[0].outcome.item())
    traces = [failed, silent, chain(1.0, "take it")]
    credit.set_advantages(traces, "dr_grpo")
    assert [node.advantages for node in sampled(failed)] == [[0.0] * 3, [0.0] * 2]
    # The silent one is a member of the group all the same.
    assert [node.advantages for node in sampled(traces[2])] == [[0.5] * 3, [0.5] * 2]


def test_two_tool_calls_are_one_step():
    made = trace(reward=1.0)
    said = turn(made, [user("go")], None, 4, [call("1", at="box"), call("2", at="bed")])
    replies = [ToolMessage(tool_call_id=n, content="nothing") for n in ("1", "2")]
    turn(made, [*said, *replies], "done", 1)
    table, _ = credit.table_from_traces([made])
    assert table.tokens.tolist() == [4, 1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"unit": "leaf"}, "must be 'branch' or 'trace'"),
        ({"keys": lambda made, node: None}, "node 1: `keys` gave NoneType"),
        ({"keys": lambda made, node: {"rollout": 1}}, "node 1: `keys` gave `rollout`"),
    ],
)
def test_bad_arguments(change, text):
    with pytest.raises(TableError, match=text):
        credit.table_from_traces([chain(1.0, "x")], **change)


def test_a_task_without_a_name():
    made = chain(1.0, "x")
    made.task.key = made.task.hash = None
    with pytest.raises(TableError, match="neither key nor hash"):
        credit.table_from_traces([made])
    assert len(credit.table_from_traces([made], group=lambda some: "g")[0]) == 2


def test_a_record_read_back():
    made = chain(1.0, "take it")
    again = WireTrace.model_validate(made.to_record())
    table, read = credit.table_from_traces([made])[0], credit.table_from_traces([again])[0]
    assert read.state_names == table.state_names
    assert read.action_names == table.action_names


def test_the_lines_to_paste(paste, capsys):
    traces = [chain(1.0, "take it"), chain(0.0, "leave it")]
    found = paste(credit, traces=traces)["estimate"]
    assert len(found.advantage) == 4
    assert str(traces[0].branches[0].advantages) in capsys.readouterr().out
