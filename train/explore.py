"""Hindsight-guided exploration (TreeHCA, Mukherjee et al.): chains first, then branches where a turn went wrong.

    agent = ModelAgent(policy, form, Acting("free"))
    forest = explore(agent, lambda: gymnasium.make("rtmc.gymenvs:rtmc/SearchQA-v0"), [0, 1, 2], budget=2000)
    table = forest.table()                       # for treehca, tree_grpo, at2po
    est = rtmc.estimate(table, "treehca", weights="pool_corrected")

For each task `chains` rollouts are played from the prompt to the verifier. Every completed turn is scored by the
likelihood of the reference answer after it (rtmc/train/scoring.py), the prompt too. Then, round after round until
`budget` tokens were sampled for the task, `rtmc.explore.select` names histories to revisit; at each, `candidates` turns
are sampled and executed in forks of the environment, scored, one is drawn with p_i = rho_i / sum rho
(`rtmc.explore.draw`) and played on to the verifier, the others are dropped; what was there before stays. The drawn
turn's `pool_weight` is 1 / (N p_I): with it the branch's outcome is on average exactly the value of its history, for
any N and wherever the branch was put. The prompt's own value (`divisor="children"`, `leaf_norm=None`) is exact where
the choice of histories does not look at their turns (rules "random" and "none", with episodes of one length).

Rules (the paper's Table 4): "hindsight" as above; "entropy" revisits the turns the policy was least sure of, "random"
any history, "none" (or "chains") plays chains alone. All spend the same budget: where a rule names no history, the
round is one chain. A branch or a chain that was begun is played to its end, so that a task may use more than `budget`
by one round. The first chains are played whatever `budget` says; where they took it all, or where hindsight found
nothing to revisit, `explore` warns (`rtmc.train.revisit.notes`).

Errors of the environment are data. A candidate it could not execute leaves the draw (N counts those it could, so that
the branch stands for turns that work), a rollout it broke off has an unknown outcome; both are kept with their error.

What this is not: it corrects the draw, not the choice *where* to explore (see rtmc/methods/treehca.py); it changes no
weight; it limits no episode: turn limits are the environment's own. What an environment draws by chance after a fork
is as good as its snapshot: one that holds the generator repeats it in every candidate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

import rtmc.explore as arithmetic
from rtmc.rollouts import Stop
from rtmc.train.agent import Agent
from rtmc.train.forks import Worlds
from rtmc.train.references import ExploreError, Reference, reference_of
from rtmc.train.revisit import Settings, histories, log_rho, notes
from rtmc.train.turn_forest import PROMPT, Candidate, Forest, Move, Node, Path, Place, Root

ReferenceOf = Callable[[gymnasium.Env], Reference | None]
Draw = Callable[[Sequence[float], Any], arithmetic.Draw]
# Rounds without a sampled token (all was forced, or nothing could be played) after which a task's budget is left.
_PATIENCE = 8


def explore(
    agent: Agent,
    env: gymnasium.Env | Callable[[], gymnasium.Env],
    tasks: Any,
    *,
    budget: int,
    rule: str = "hindsight",
    chains: int = 4,
    candidates: int | None = None,
    per_round: int = 1,
    threshold: float = -0.14,
    penalty: float = 0.05,
    penalty_sign: int = 1,
    eps_smooth: float = 0.05,
    smoothing: str = "additive",
    reference: str | Reference | ReferenceOf | None = reference_of,
    key: Sequence[int] = (0,),
    draw: Draw = arithmetic.draw,
    on_turn: Callable[[int, int], None] | None = None,
) -> Forest:
    """Trees of turns for each task, see the head of this file.

    agent        an Agent, such as `rtmc.train.agent.ModelAgent`
    env          a gymnasium environment, or a function that makes one; `env.unwrapped.snapshot()` and `.restore()` fork
                 its episodes. With one environment every turn goes through them; with a function each rollout that is
                 played beside others has an environment of its own, and rule "none" does without forks
    tasks        one task or several (a sequence, a one-dimensional array, an iterator): a whole number is the seed of
                 `reset`, anything else its option `task`
    budget       policy tokens to sample for each task, chains and dropped candidates included
    rule         "hindsight", "entropy", "random" or "none" (also called "chains")
    chains       rollouts from the prompt before the first round
    candidates   N, turns sampled at a revisited history; None = 2 with "hindsight", else 1
    per_round    histories a task revisits at a time
    threshold, penalty, penalty_sign, eps_smooth, smoothing
                 as for `rtmc.explore.select` and the estimator `treehca`; where p is far below `eps_smooth` all along,
                 no log rho is far from 0 and nothing is marked: lower it for a model that knows no answer yet
    reference    the reference answer: a function of the environment just reset, a Reference, or the answer itself (in
                 the wrapper `<answer>{}</answer>`). None: turns are not scored; only the other rules with a single
                 candidate do without
    key          whole numbers, at least 0, that fix every random number with the tasks: a task that is a whole number
                 gets the same trees whatever is explored beside it, any other by its place in `tasks`
    draw         how one of the candidates is drawn by their log rho: (scores, generator) -> (index, probability)
    on_turn      called after every lockstep turn with the tokens sampled so far, and the budget of all tasks

    Warns (UserWarning) where no task could start, where the first chains took the budget, and where hindsight marked
    nothing. Raises ExploreError (a ValueError) for an argument out of range, and for an environment without `snapshot`
    and `restore` or without a known reference where they are needed, TypeError for what is no environment; the message
    says what would do.
    """
    settings = Settings(
        rule, budget, chains, candidates, per_round, threshold, penalty, penalty_sign, eps_smooth, smoothing
    )
    explorer = Explorer(agent, Worlds(env), settings, reference, draw, on_turn)
    try:
        forest = explorer.run(_listed(tasks), key)
    finally:
        explorer.worlds.close()
    for note in notes(forest, settings).values():
        warnings.warn(note, stacklevel=2)
    return forest


def _listed(tasks: Any) -> list[Any]:
    """The tasks in their order; ExploreError for a set, which has none, and for an array that is no list of tasks."""
    if isinstance(tasks, set | frozenset):
        raise ExploreError(f"`tasks` must have an order: give a list instead of {tasks!r}")
    if isinstance(tasks, np.ndarray | torch.Tensor):
        listed = tasks.tolist()
        kinds = int | str if tasks.ndim == 1 else int
        if tasks.ndim > 1 or not all(isinstance(task, kinds) for task in (listed if tasks.ndim else [listed])):
            raise ExploreError(
                f"`tasks`, an array, must be one whole number or (n,) whole numbers or texts, got {tasks.dtype} of "
                f"shape {tuple(tasks.shape)}"
            )
        return listed if tasks.ndim else [listed]
    several = isinstance(tasks, Sequence | Iterator) and not isinstance(tasks, str | bytes)
    return list(tasks) if several else [tasks]


@dataclass
class _Seat:
    """A rollout being played: where it stands, and its own random numbers."""

    path: Path
    place: Place
    generator: Any
    slot: int  # of the environments


class Explorer:
    """Explores with one agent and one kind of environment, call after call; owns the environments."""

    def __init__(
        self,
        agent: Agent,
        worlds: Worlds,
        settings: Settings,
        reference: str | Reference | ReferenceOf | None = reference_of,
        draw: Draw = arithmetic.draw,
        on_turn: Callable[[int, int], None] | None = None,
    ) -> None:
        self.agent = agent
        self.worlds = worlds
        self.settings = settings
        self.draw = draw
        self.on_turn = on_turn
        self.reference: ReferenceOf | None
        if isinstance(reference, str | Reference):
            given = Reference((reference,)) if isinstance(reference, str) else reference
            self.reference = lambda env: given
        else:
            self.reference = reference
        if self.reference is None and (settings.rule == "hindsight" or settings.pool > 1):
            what = "rule='hindsight'" if settings.rule == "hindsight" else "`candidates` above 1"
            raise ExploreError(f"{what} scores turns by a reference answer: give `reference`")

    def run(self, tasks: Sequence[Any], key: Sequence[int] = (0,)) -> Forest:
        """See `explore`; it warns of nothing."""
        self.key = _checked_key(key)
        self.agent.weights_changed()
        self.forest = Forest()
        self.unscored: list[Place] = []
        self.worlds.check_forks(needed=self.settings.rule != "none", option=f"rule={self.settings.rule!r}")
        for task in tasks:
            self._start(task)
        roots = self.forest.roots
        idle = {t: 0 for t, root in enumerate(roots) if root.place is not None}
        self._play(self._chains([t for t in idle for _ in range(self.settings.chains)], 0))
        for root in roots:
            root.chain_tokens = root.tokens
        while live := [
            t for t, rounds in idle.items() if roots[t].tokens < self.settings.budget and rounds < _PATIENCE
        ]:
            before = {t: roots[t].tokens for t in live}
            self._round(live)
            idle |= {t: idle[t] + 1 if roots[t].tokens == before[t] else 0 for t in live}
        return self.forest

    def _start(self, task: Any) -> None:
        """The prompt of a task, its reference answer and its score."""
        number = len(self.forest.roots)
        try:
            observation, info, snapshot = self.worlds.reset(task)
        except ExploreError:
            raise
        except Exception as error:  # a task that breaks is data, not the end of a run
            text = f"reset: {type(error).__name__}: {error}"
            self.forest.roots.append(Root(task, f"task {task}", error=text))
            path = self._path(number, PROMPT)
            path.stop, path.error = Stop.ERROR, text
            return
        reference = None if self.reference is None else self._reference()
        place = Place(number, PROMPT, observation, info, self.agent.begin(observation), snapshot)
        self.worlds.arrived(0, place)
        self.forest.roots.append(Root(task, str(info.get("task_id", f"task {task}")), place, reference))
        self._note(place)

    def _reference(self) -> Reference:
        assert self.reference is not None
        found = self.reference(self.worlds.first)
        if not isinstance(found, Reference):
            raise ExploreError(f"`reference` must give a Reference for the environment just reset, got {found!r}")
        return found

    def _round(self, tasks: Sequence[int]) -> None:
        """One branch, or one chain where the rule names no history, for each task and each of `per_round`."""
        branches: list[Place] = []
        chains: list[int] = []
        for t in tasks:
            places = histories(self.forest, t, self.settings, self._seed(t, len(self.forest.roots[t].rollouts), 3))
            branches += places
            if not places:  # one and no more, so that every rule oversteps its budget by as little
                chains.append(t)
        seats = self._branch(branches)
        self._play(seats + self._chains(chains, len(branches) * self.settings.pool))

    def _branch(self, places: Sequence[Place]) -> list[_Seat]:
        """A pool of turns at each place, one of which is drawn: the rollouts that go on from them."""
        pool = self.settings.pool
        paths = [self._path(place.task, place.node) for place in places]
        generators = [self._generator(path, 1, c) for path in paths for c in range(pool)]
        at = [place for place in places for _ in range(pool)]
        moves = self._moves(at, generators)
        tried = [self._try(slot, p, move) for slot, (p, move) in enumerate(zip(at, moves, strict=True))]
        self._score()
        seats = []
        for k, (path, place) in enumerate(zip(paths, places, strict=True)):
            part = slice(k * pool, (k + 1) * pool)
            index = self._drawn(path, place, moves[part], tried[part])
            if index is not None and path.stop is None:
                seats.append(_Seat(path, self._place(tried[part][index]), generators[part][index], part.start + index))
        return seats

    def _drawn(
        self,
        path: Path,
        place: Place,
        moves: Sequence[Move | None],
        tried: Sequence[Place | str | None],
    ) -> int | None:
        """Which candidate is drawn, now a node of the forest; None where none could be executed."""
        there = [c for c, after in enumerate(tried) if isinstance(after, Place)]
        errors = [after for after in tried if isinstance(after, str)]
        node, index, probability = None, None, dict.fromkeys(there, 1.0)
        if not there:
            path.stop = Stop.ERROR if errors else Stop.TRUNCATED
            path.error = errors[0] if errors else None
        else:
            index = there[0]
            if len(there) > 1:
                scores = log_rho(place.score, [self._place(tried[c]).score for c in there], self.settings)
                drawn = self.draw(scores, self._generator(path, 2))
                index = there[drawn.index]
                probability = dict(
                    zip(there, torch.tensor(scores, dtype=torch.float64).softmax(0).tolist(), strict=True)
                )
                probability[index] = drawn.probability
            move = moves[index]
            assert move is not None
            node = self._add(path, place, move, self._place(tried[index]))
            self.forest.nodes[node].pool_weight = arithmetic.pool_weight(probability[index], len(there))
        for c, (move, after) in enumerate(zip(moves, tried, strict=True)):
            if move is not None:
                score, error = (after.score, None) if isinstance(after, Place) else (math.nan, after)
                weight, drawn_node = probability.get(c, 0.0), node if c == index else None
                self.forest.candidates.append(
                    Candidate(place.node, place.task, move.text, move.tokens, score, weight, drawn_node, error)
                )
        return index

    @staticmethod
    def _place(after: Place | str | None) -> Place:
        assert isinstance(after, Place)  # the caller took only those
        return after

    def _play(self, seats: Sequence[_Seat]) -> None:
        """Play rollouts side by side to their ends, and score what was completed."""
        seats = list(seats)
        while seats:
            moves = self._moves([seat.place for seat in seats], [seat.generator for seat in seats])
            for seat, move in zip(seats, moves, strict=True):
                self._turn(seat, move)
            seats = [seat for seat in seats if seat.path.stop is None]
            if self.on_turn is not None:
                self.on_turn(self.forest.tokens, self.settings.budget * len(self.forest.roots))
        self._score()

    def _moves(self, places: Sequence[Place], generators: Sequence[Any]) -> Sequence[Move | None]:
        moves = self.agent.act([p.history for p in places], [p.info for p in places], generators)
        if len(moves) != len(places):
            raise ExploreError(f"`agent.act` must give a move or None for each history: {len(moves)} of {len(places)}")
        return moves

    def _turn(self, seat: _Seat, move: Move | None) -> None:
        after = self._try(seat.slot, seat.place, move)
        if isinstance(after, Place):
            assert move is not None
            self._add(seat.path, seat.place, move, after)
            seat.place = after
        elif after is None:  # no room for another turn: a limit, like the environment's own
            seat.path.stop, seat.path.reward = Stop.TRUNCATED, seat.place.reward
        else:
            seat.path.stop, seat.path.error = Stop.ERROR, after

    def _try(self, slot: int, place: Place, move: Move | None) -> Place | str | None:
        """What stands after a turn taken at a place: a place, or the environment's error; None without a turn."""
        if move is None:
            return None
        root = self.forest.roots[place.task]
        root.tokens += move.tokens
        try:
            answered = self.worlds.step(slot, place, root.key, move.text)
        except Exception as error:  # an environment that breaks is data, not the end of a run
            return f"{type(error).__name__}: {error}"
        text, info = answered.observation, answered.info
        history, total = self.agent.extend(place.history, move, text), place.reward + answered.reward
        after = Place(place.task, PROMPT, text, info, history, answered.snapshot, total)
        if answered.terminated or answered.truncated:
            after.ended = Stop.TRUNCATED if answered.truncated else Stop.FAILURE
            if info.get("success", answered.terminated and total > 0):
                after.ended = Stop.SUCCESS
        self.worlds.arrived(slot, after)
        self._note(after)
        return after

    def _add(self, path: Path, place: Place, move: Move, after: Place) -> int:
        """A completed turn as a node of a rollout."""
        number = after.node = len(self.forest.nodes)
        depth = 0 if place.node == PROMPT else self.forest.nodes[place.node].depth + 1
        self.forest.nodes.append(Node(place.node, path.index, depth, place, move, after))
        path.nodes.append(number)
        if after.ended is not None:
            path.stop, path.reward = after.ended, after.reward
        return number

    def _chains(self, tasks: Sequence[int], slot: int) -> list[_Seat]:
        """A rollout from the prompt of each of `tasks`, in the slots from `slot` on."""
        seats = []
        for k, task in enumerate(tasks):
            path, place = self._path(task, PROMPT), self.forest.roots[task].place
            assert place is not None
            seats.append(_Seat(path, place, self._generator(path, 0), slot + k))
        return seats

    def _path(self, task: int, start: int) -> Path:
        rollouts = self.forest.roots[task].rollouts
        path = Path(task, len(self.forest.paths), len(rollouts), start)
        rollouts.append(len(self.forest.paths))
        self.forest.paths.append(path)
        return path

    def _note(self, place: Place) -> None:
        if self.forest.roots[place.task].reference is not None:
            self.unscored.append(place)

    def _score(self) -> None:
        """Score every new place, all in one call."""
        if not self.unscored:
            return
        references = [self.forest.roots[place.task].reference for place in self.unscored]
        told = [reference for reference in references if reference is not None]
        scores = self.agent.score([place.history for place in self.unscored], told)
        if len(scores) != len(self.unscored):
            raise ExploreError(
                f"`agent.score` must give one score for each history: {len(scores)} of {len(self.unscored)}"
            )
        for place, score in zip(self.unscored, scores, strict=True):
            place.score = float(score)
        self.unscored = []

    def _seed(self, task: int, *more: int) -> list[int]:
        asked = self.forest.roots[task].key
        whole = isinstance(asked, int | np.integer) and not isinstance(asked, bool)
        return [*self.key, int(asked) if whole else task, *more]

    def _generator(self, path: Path, *kind: int) -> np.random.Generator:
        return np.random.default_rng(self._seed(path.task, path.number, *kind))


def _checked_key(key: Any) -> tuple[int, ...]:
    listed = isinstance(key, Sequence | np.ndarray) and not isinstance(key, str | bytes)
    whole = listed and all(isinstance(k, int | np.integer) and not isinstance(k, bool) and k >= 0 for k in key)
    if not whole:
        raise ExploreError(f"`key` must be a sequence of whole numbers of at least 0, such as (0,), got {key!r}")
    return tuple(int(k) for k in key)
