"""Trees of turns: what was played can be played again, every rule spends its budget, tables and files say it all."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rtmc
from rtmc import read_rollouts
from rtmc.rollouts import Stop
from rtmc.train.acting import Acting
from rtmc.train.agent import ModelAgent
from rtmc.train.explore import explore
from rtmc.train.policy import Policy
from rtmc.train.prompt import PlainFormat
from rtmc.train.references import ExploreError, Reference, reference_of
from rtmc.train.revisit import RULES
from rtmc.train.turn_forest import PROMPT, Forest
from tests import copyworld, tiny
from tests.explore_world import QUESTIONS, Titles, messenger, search_qa

TREE_METHODS = ("treehca", "tree_grpo", "at2po")


def household(**options: Any) -> gymnasium.Env:
    given = {"split": "tiny", "max_turns": 4, "observation": "knowledge", **options}
    return gymnasium.make("rtmc.gymenvs:rtmc/Household-v0", disable_env_checker=True, **given)


def walker(**more: Any) -> ModelAgent:
    words = tiny.tokenizer()
    policy = Policy(tiny.model(vocab=len(words)), words)
    return ModelAgent(policy, PlainFormat(words, history=0), Acting("choice", ("help", "look")), **more)


@pytest.fixture(scope="module")
def trees() -> Forest:
    """Two questions, with branches at several depths."""
    return explore(messenger(), search_qa, [0, 1], budget=50, chains=2, threshold=math.inf)


def trace(forest: Forest) -> list[tuple]:
    return [
        (n.parent, n.rollout, n.move.text, n.after.info["state_key"], round(n.after.score, 5), round(n.pool_weight, 5))
        for n in forest.nodes
    ]


def test_trees_have_branches_and_keep_what_was_there(trees):
    starts = [path.start for path in trees.paths]
    assert starts.count(PROMPT) > 4  # two chains each, and branches at the prompt
    assert any(start != PROMPT for start in starts)
    assert [node.parent for node in trees.nodes if node.depth == 0] == [PROMPT] * sum(p == PROMPT for p in starts)
    for number, node in enumerate(trees.nodes):
        assert node.parent < number
        assert node.after.node == number
        if node.parent != PROMPT:
            assert node.before is trees.nodes[node.parent].after
    chains = [path for path in trees.paths if path.number < 2]
    alone = explore(messenger(), search_qa, [0, 1], budget=0, chains=2, threshold=math.inf)
    assert [[trees.nodes[n].move.text for n in p.nodes] for p in chains] == [
        [alone.nodes[n].move.text for n in p.nodes] for p in alone.paths
    ]


@pytest.mark.parametrize(
    ("make", "agent"), [(search_qa, messenger), (household, walker)], ids=["search-qa", "household"]
)
@pytest.mark.parametrize("single", [False, True])
def test_every_rollout_can_be_played_again(make, agent, single):
    """Forks leave no trace: the actions from the prompt on give the same texts, keys and rewards in a fresh world."""
    env = make() if single else make
    forest = explore(agent(), env, [0, 1], budget=40, chains=2, threshold=math.inf)
    assert sum(path.start != PROMPT for path in forest.paths) > 2
    fresh = make()
    for path in forest.paths:
        observation, info = fresh.reset(seed=forest.roots[path.task].key)
        total = 0.0
        for number in forest.lineage(path):
            node = forest.nodes[number]
            assert (observation, info["state_key"]) == (node.before.observation, node.before.info["state_key"])
            observation, reward, terminated, truncated, info = fresh.step(node.move.text)
            total += reward
            assert (observation, info["state_key"]) == (node.after.observation, node.after.info["state_key"])
            assert (node.after.ended is not None) == (terminated or truncated)
        assert path.reward == total
        assert path.stop is (Stop.SUCCESS if info["success"] else Stop.TRUNCATED if truncated else Stop.FAILURE)


def test_one_environment_and_many_play_alike(trees):
    single = explore(messenger(), search_qa(), [0, 1], budget=50, chains=2, threshold=math.inf)
    assert trace(single) == trace(trees)


def test_a_task_does_not_depend_on_what_is_explored_beside_it(trees):
    alone = explore(messenger(), search_qa, 1, budget=50, chains=2, threshold=math.inf)
    together = [trace(trees)[n] for n in trees.rows([1])]
    assert [row[2:] for row in trace(alone)] == [row[2:] for row in together]
    other = explore(messenger(), search_qa, 1, budget=50, chains=2, threshold=math.inf, key=(7,))
    assert trace(other) != trace(alone)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_spends_its_budget(rule):
    forest = explore(messenger(), search_qa, [0, 1], budget=40, chains=2, rule=rule, candidates=2, threshold=1.0)
    for task, root in enumerate(forest.roots):
        rows = forest.rows([task])
        dropped = [c.tokens for c in forest.candidates if c.task == task and c.node is None]
        assert root.tokens == sum(forest.nodes[n].move.tokens for n in rows) + sum(dropped)
        assert root.tokens >= 40
        # Less than one round more: two candidates and a rollout, or two chains, of three turns each.
        assert root.tokens - 40 < 8 * max(forest.nodes[n].move.tokens for n in rows)
    assert (len(forest.candidates) > 0) == (rule != "none")
    assert all(path.stop is not None for path in forest.paths)


def test_the_rules_differ_by_less_than_a_rollout():
    """Table 4 compares them for one budget: on average over tasks none may spend a rollout more than another."""
    mean, longest = {}, 0
    for rule in RULES:
        forest = explore(messenger(), search_qa, range(12), budget=60, chains=4, rule=rule, threshold=1.0)
        mean[rule] = np.mean([root.tokens for root in forest.roots])
        longest = max(longest, *(sum(forest.nodes[n].move.tokens for n in path.nodes) for path in forest.paths))
        if rule == "none":  # at most the chain that was begun before the budget was spent
            assert all(root.tokens - 60 < longest for root in forest.roots)
    assert max(mean.values()) - min(mean.values()) < longest, mean


def test_where_nothing_dropped_the_budget_goes_to_chains():
    forest = explore(messenger(), search_qa, 0, budget=40, chains=2, threshold=-3.0)
    assert forest.candidates == []
    assert forest.tokens >= 40
    assert len(forest.paths) > 4
    assert all(path.start == PROMPT for path in forest.paths)


def test_draws_are_recorded(trees):
    by_branch: dict[int, list] = {}
    for place, candidate in enumerate(trees.candidates):
        by_branch.setdefault(place // 2, []).append(candidate)
    for pair in by_branch.values():
        assert len({(c.parent, c.task) for c in pair}) == 1
        assert sum(c.probability for c in pair) == pytest.approx(1.0)
        before = trees.roots[pair[0].task].place if pair[0].parent == PROMPT else trees.nodes[pair[0].parent].after
        rho = [(c.score + 0.05) / (before.score + 0.05) for c in pair]
        for c, r in zip(pair, rho, strict=True):
            assert c.probability == pytest.approx(r / sum(rho), rel=1e-9)
        (drawn,) = [c for c in pair if c.node is not None]
        assert trees.nodes[drawn.node].pool_weight == pytest.approx(1 / (2 * drawn.probability), rel=1e-12)
        assert trees.nodes[drawn.node].move.text == drawn.text
    drawn = {c.node for c in trees.candidates if c.node is not None}
    assert all(node.pool_weight == 1 for n, node in enumerate(trees.nodes) if n not in drawn)


def test_the_table_feeds_the_tree_methods(trees):
    table = trees.table(dtype=torch.float64)
    assert set(table.scores) == {"answer_score", "root_score", "entropy", "pool_weight", "tree"}
    assert table.group_names == ["q0", "q1"] or table.group_names == ["q1", "q0"]
    assert len(table) == len(trees.nodes)
    for row, number in enumerate(trees.rows([0, 1])):
        node = trees.nodes[number]
        assert int(table.index[row]) == node.depth
        assert float(table.scores["answer_score"][row]) == node.after.score
        assert math.isnan(float(table.scores["root_score"][row])) == (node.parent != PROMPT)
        assert int(table.tokens[row]) == node.move.tokens
        # The turn's surprise is the at2po code's entropy.
        turn = node.move.data
        assert float(table.scores["entropy"][row]) == pytest.approx(-turn.logprob[turn.sampled].mean(), rel=1e-6)
    for method in TREE_METHODS:
        assert torch.isfinite(rtmc.advantages(table, method)).all()
    corrected = rtmc.estimate(table, "treehca", weights="pool_corrected", divisor="children", leaf_norm=None)
    plain = rtmc.estimate(table, "treehca", weights="uniform", leaf_norm=None)
    assert torch.isfinite(corrected.advantage).all()
    assert not torch.allclose(corrected.advantage, plain.advantage)
    log_rho = rtmc.estimate(table, "treehca").parts["log_rho"]
    for row, number in enumerate(trees.rows([0, 1])):
        node = trees.nodes[number]
        wanted = math.log((node.after.score + 0.05) / (node.before.score + 0.05))
        assert float(log_rho[row]) == pytest.approx(wanted, abs=1e-12)


def test_what_the_table_calls_a_tree(trees):
    prompt, chain = trees.table().scores["tree"], trees.table(tree="chain").scores["tree"]
    assert len(prompt.unique()) == 2
    assert len(chain.unique()) == sum(node.parent == PROMPT for node in trees.nodes)
    with pytest.raises(ValueError, match="`tree` must be"):
        trees.table(tree="turn")


def test_rollouts_go_through_a_file(trees, tmp_path):
    rtmc.write_rollouts(tmp_path / "trees.jsonl", trees.rollouts())
    read = read_rollouts(tmp_path / "trees.jsonl")
    assert [r.rollout_id for r in read] == [trees.name(p) for p in trees.paths]
    for rollout, path in zip(read, trees.paths, strict=True):
        line = trees.lineage(path)
        assert [s.action for s in rollout.steps] == [trees.nodes[n].move.text for n in line]
        assert [s.scores["answer_score"] for s in rollout.steps] == [trees.nodes[n].after.score for n in line]
        assert rollout.reward == path.reward
        if path.start == PROMPT:
            assert "branch" not in rollout.meta
        else:
            first = rollout.meta["branch"]["first_own_step"]
            assert line[first:] == path.nodes
            assert rollout.meta["branch"]["of"] == trees.name(trees.paths[trees.nodes[path.start].rollout])
    assert len(rtmc.tabulate(read)) == sum(len(trees.lineage(p)) for p in trees.paths)
    free = explore(messenger(mode="free"), search_qa, 0, budget=20, chains=1, rule="none").rollouts()
    assert all(r.token_ids is not None and len(r.token_ids) == len(r.steps) for r in free)


def test_both_kinds_of_entropy():
    found = {}
    for mode in ("choice", "free"):
        for entropy in ("surprise", "distribution"):
            agent = messenger(mode=mode, entropy=entropy)
            forest = explore(agent, search_qa, 0, budget=20, chains=2, rule="none")
            found[mode, entropy] = forest
            policy, form = agent.scorer.policy, agent.form
            for node in forest.nodes:
                turn = node.move.data
                # One plain pass over the context and the turn; a choice is normalised over what may follow.
                tokens = (*turn.request.context, *turn.tokens)
                with torch.no_grad():
                    logits = policy.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].double()
                values = []
                for k in np.flatnonzero(turn.sampled):
                    row = logits[len(turn.request.context) + k - 1]
                    if mode == "choice":
                        listed = turn.request.choices.tokens
                        row = row[sorted({c[k] for c in listed if c[:k] == turn.tokens[:k]})]
                        assert len(row) > 1
                    p = row.softmax(-1)
                    values.append(float(-(p * p.log()).sum()))
                wanted = np.mean(values) if entropy == "distribution" else -turn.logprob[turn.sampled].mean()
                assert node.move.entropy == pytest.approx(wanted, abs=1e-4)
                assert form.stop
    assert trace(found["free", "surprise"]) == trace(found["free", "distribution"])


def test_the_reference_of_each_world():
    env = search_qa()
    env.reset(options={"task": QUESTIONS[0].id})
    assert reference_of(env) == Reference(("Kesh", "the town of Kesh"), "<answer>{}</answer>")
    env = search_qa(actions="tools")
    env.reset(options={"task": QUESTIONS[0].id})
    assert reference_of(env).wrapper == "finish({})"
    env = household(task="tiny/pick_and_place_simple/1")
    env.reset()
    found = reference_of(env)
    sentence = env.unwrapped.snapshot().task.goal.sentence
    assert found.wrapper.format(*found.answers) == f"Done or open? The task to {sentence} is done."
    assert found.answers == ("done",)


def test_the_word_of_the_environment_comes_first():
    class Told(copyworld.CopyWorld):
        def reference_answer(self) -> str:
            return self.wanted[0]

    env = Told()
    env.reset(seed=1)
    assert reference_of(env) == Reference((env.wanted[0],))


class Breaking(gymnasium.Wrapper):
    """Search QA that raises at certain messages, or at the first reset."""

    def __init__(self, env: gymnasium.Env, on: str, resets: int = 0) -> None:
        super().__init__(env)
        self.on, self.resets = on, resets

    def reset(self, **given: Any) -> Any:
        self.resets -= 1
        if self.resets == 0:
            raise RuntimeError("no world today")
        return self.env.reset(**given)

    def step(self, action: str) -> Any:
        if self.on in action:
            raise RuntimeError("the world broke")
        return self.env.step(action)


class Paying(gymnasium.Wrapper):
    """Search QA that also pays a quarter for every turn."""

    def step(self, action: str) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) + 0.25, *rest


def test_a_branch_has_the_rewards_of_what_it_branched_from():
    forest = explore(messenger(), Paying(search_qa()), [0, 1], budget=40, chains=2, threshold=math.inf)
    assert any(path.start != PROMPT for path in forest.paths)
    for path in forest.paths:
        assert path.reward == float(path.stop is Stop.SUCCESS) + 0.25 * len(forest.lineage(path))


def test_errors_are_data():
    forest = explore(messenger(), Breaking(search_qa(), "<search>"), [0, 1], budget=80, chains=2, threshold=math.inf)
    broken = [path for path in forest.paths if path.error is not None]
    assert broken
    assert all(p.error == "RuntimeError: the world broke" and p.stop is Stop.ERROR for p in broken)
    assert all(math.isnan(p.reward) for p in broken)
    tried = [c for c in forest.candidates if c.error is not None]
    assert tried
    assert all(c.probability == 0 and c.node is None and math.isnan(c.score) for c in tried)
    # Where one of two could be executed it goes on, with weight one: it stands for itself alone.
    lonely = [
        a for a, b in zip(forest.candidates[::2], forest.candidates[1::2], strict=True) if a.error is None and b.error
    ]
    assert lonely
    assert all(forest.nodes[c.node].pool_weight == 1 and c.probability == 1 for c in lonely)
    table = forest.table()
    for method in TREE_METHODS:
        assert torch.isfinite(rtmc.advantages(table, method)).all()
    assert int(torch.isnan(table.outcome).sum()) == len(broken)
    assert all(r.error for r in forest.rollouts() if r.stop is Stop.ERROR)


def test_a_task_that_cannot_start_is_data():
    forest = explore(
        messenger(), Breaking(search_qa(), "no such", resets=1), [0, 1], budget=30, chains=2, threshold=math.inf
    )
    assert forest.roots[0].error == "reset: RuntimeError: no world today"
    assert forest.rows([0]) == []
    assert len(forest.rows([1])) > 0
    assert forest.rollouts()[0].error == forest.roots[0].error
    assert torch.isfinite(rtmc.advantages(forest.table(), "treehca")).all()


def test_a_history_without_room_ends_there():
    agent = messenger()
    agent.scorer.policy.limit = 130
    forest = explore(agent, lambda: search_qa(max_turns=9), [0, 1], budget=90, chains=3, threshold=math.inf)
    cut = [p for p in forest.paths if p.stop is Stop.TRUNCATED]
    assert any(forest.nodes[p.nodes[-1]].depth < 8 for p in cut if p.nodes)
    # What could not be scored any more marks nothing, and is drawn as likely as its sibling.
    unscored = [n for n, node in enumerate(forest.nodes) if math.isnan(node.after.score)]
    assert unscored
    assert torch.isfinite(rtmc.advantages(forest.table(), "treehca")).all()


def test_forced_turns_do_not_spin():
    """A world with one command samples no token: no budget is ever spent."""

    class Forced(copyworld.CopyWorld):
        def _info(self, action: str | None, valid: bool, success: bool) -> dict[str, Any]:
            return {**super()._info(action, valid, success), "admissible_commands": ["mug"]}

        def snapshot(self) -> tuple:
            return (self.wanted, list(self.said))

        def restore(self, snapshot: tuple) -> None:
            self.wanted, self.said = snapshot[0], list(snapshot[1])

    forest = explore(walker(), Forced(turns=2), 0, budget=5, chains=1, reference="mug", threshold=math.inf)
    assert forest.tokens == 0
    assert 1 < len(forest.paths) < 20
    assert all(node.move.entropy == 0 for node in forest.nodes)


def test_what_exploration_needs():
    agent, plain = messenger(), copyworld.CopyWorld
    with pytest.raises(ExploreError, match=r"rule='hindsight' goes back .* CopyWorld needs snapshot and restore"):
        explore(agent, plain, 0, budget=9, reference="mug")
    with pytest.raises(ExploreError, match="or give a function that makes environments"):
        explore(agent, plain(), 0, budget=9, rule="none", reference="mug")
    with pytest.raises(ExploreError, match="no reference answer is known for CopyWorld: give `reference`"):
        explore(agent, plain, 0, budget=9, rule="none")
    with pytest.raises(ExploreError, match="rule='hindsight' scores turns by a reference answer"):
        explore(agent, search_qa, 0, budget=9, reference=None)
    with pytest.raises(ExploreError, match="`candidates` above 1 scores turns"):
        explore(agent, search_qa, 0, budget=9, rule="random", candidates=2, reference=None)
    with pytest.raises(ExploreError, match="TimeLimit"):
        explore(agent, gymnasium.wrappers.TimeLimit(search_qa(), 2), 0, budget=9)
    with pytest.raises(ExploreError, match="must give a Reference"):
        explore(agent, search_qa, 0, budget=9, reference=lambda env: "Kesh")
    with pytest.raises(TypeError, match="`env` must be"):
        explore(agent, "rtmc/SearchQA-v0", 0, budget=9)
    with pytest.raises(ExploreError, match="environments of text; CartPoleEnv observes ndarray"):
        explore(agent, lambda: gymnasium.make("CartPole-v1"), 0, budget=9, rule="none", reference=None)


def test_chains_need_no_forks_and_no_reference():
    forest = explore(walker(), lambda: copyworld.CopyWorld(turns=2), [3, 4], budget=12, rule="none", reference=None)
    assert len(forest.paths) > 8
    table = forest.table()
    assert "answer_score" not in table.scores
    assert torch.isfinite(rtmc.advantages(table, "tree_grpo")).all()
    with pytest.raises(rtmc.EstimatorError, match="`answer_score`"):
        rtmc.advantages(table, "treehca")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rule", "best"), ("budget", -1), ("budget", 2.5), ("chains", 0), ("candidates", 0), ("per_round", True),
        ("threshold", math.nan), ("penalty", math.inf), ("penalty_sign", 0), ("eps_smooth", 2.0), ("smoothing", "no"),
    ],
)  # fmt: skip
def test_bad_arguments(name, value):
    with pytest.raises(ExploreError, match=f"`{name}` must be .*, got"):
        explore(messenger(), search_qa, 0, **{"budget": 9, name: value})


def test_tasks_by_name():
    env = search_qa()
    forest = explore(messenger(), env, "q1", budget=10, chains=1, threshold=math.inf)
    assert [root.task_id for root in forest.roots] == ["q1"]
    assert Titles().search(["Ana Dorr"], 1)
    twice = explore(messenger(), env, ["q1", "q1"], budget=10, chains=1, threshold=math.inf)
    table = twice.table()
    assert table.group_names == ["q1"]
    assert table.n_rollouts == len(twice.paths)


@pytest.mark.parametrize("key", [3, (1.5,), (-1,), "0"])
def test_keys_are_whole_numbers(key):
    with pytest.raises(ExploreError, match="`key` must be"):
        explore(messenger(), search_qa, 0, budget=9, key=key)


def test_arrays_are_several_tasks_and_budgets_that_chains_take_are_told():
    with pytest.warns(UserWarning, match="`budget` is 5 tokens a task; the first chains"):
        forest = explore(messenger(), search_qa, np.arange(2), budget=5, chains=1, rule="chains")
    assert [root.key for root in forest.roots] == [0, 1]
    with pytest.raises(ExploreError, match="must have an order"):
        explore(messenger(), search_qa, {0, 1}, budget=9)
    with pytest.raises(TypeError, match="`env` must be"):
        explore(messenger(), None, 0, budget=9)
