"""Credit assignment of one training step, from columns or texts to advantages.

First 25,600 steps of integer ids (64 tasks, 8 rollouts each, 50 steps a rollout), rows in any order: the op alone with
the way into time order and back; then through ``rtmc.estimate``: a new table each time, so that checks, time order,
table and the way back are all paid for, and the same table again. Peers: the same method in numpy; GiGPO's advantage
pass row by row, another method (its numbers are not compared here) that trainers run at this place. Candidates take
turns, so each finds the caches as the other left them. Ten million steps show what a row costs at scale.

Then 8 tasks, 64 rollouts each, 50 steps a rollout; a state is the set of things done so far, as with signatures, so
that states recur near the root and thin out. Candidates, same numbers out:

* ours: ``rollout_tree_advantages`` on int64 ids in time order (what ``rtmc.advantages`` calls);
* dictionaries on ids: the peer. The two passes of the method in plain Python over dictionaries keyed by
  (state, action), the form in which published ports of it are written, given the same ids as Python integers;
* dictionaries on strings: the same with text keys, as a trainer that keeps signatures has them.

Of these the first case starts from ids on both sides. The second goes through the estimator with the table at hand, the
third starts from rows of text on both sides, so that ours pays for turning text into ids and tensors.
"""

import random
from collections import defaultdict
from collections.abc import Iterator

import torch
from measure import Case
from peers import largest
from step_credit import as_objects, gigpo_row_by_row, rtmc_in_numpy, steps_of_groups

import rtmc
from rtmc.kernels.rollout_tree import rollout_tree_advantages

TESTS = ["tests/test_rollout_tree.py", "tests/test_steptable.py"]
GAMMA, PRIOR_VISITS = 0.99, 2.0


def make_group(rng: random.Random, rollouts: int, steps: int) -> list[dict]:
    """Rollouts of (state text, action text, step reward) and an outcome; actions are drawn with a skew."""
    made = []
    for _ in range(rollouts):
        done: set[str] = set()
        path = []
        for _ in range(steps):
            action = f"view:full@module_{min(int(rng.expovariate(0.35)), 40)}.py"
            path.append(("|".join(sorted(done)), action, rng.choice((0.005, -0.005, 0.05))))
            done.add(action)
        made.append({"steps": path, "outcome": float(rng.random() < 0.4)})
    return made


def dictionary_advantages(groups, gamma, prior_visits):
    """Per group: backward returns, first visits into a table, then Q - V' read back for every step."""
    advantages = []
    for group in groups:
        visits, weight = defaultdict(int), defaultdict(float)
        state_visits, state_weight = defaultdict(int), defaultdict(float)
        for rollout in group:
            steps = rollout["steps"]
            returns = [0.0] * len(steps)
            running = rollout["outcome"]
            for t in range(len(steps) - 1, -1, -1):
                running = steps[t][2] + (running if t == len(steps) - 1 else gamma * running)
                returns[t] = running
            seen = set()
            for (state, action, _), value in zip(steps, returns, strict=True):
                if (state, action) not in seen:
                    seen.add((state, action))
                    visits[state, action] += 1
                    weight[state, action] += value
                    state_visits[state] += 1
                    state_weight[state] += value
        prior = sum(rollout["outcome"] for rollout in group) / len(group)
        for rollout in group:
            for state, action, _ in rollout["steps"]:
                q = weight[state, action] / visits[state, action]
                v = (state_weight[state] + prior_visits * prior) / (state_visits[state] + prior_visits)
                advantages.append(q - v)
    return advantages


def as_ids(groups):
    """The groups with integers for texts."""
    ids: dict[str, int] = {}

    def number(text):
        return ids.setdefault(text, len(ids))

    return [
        [{**r, "steps": [(number("s" + s), number("a" + a), x) for s, a, x in r["steps"]]} for r in group]
        for group in groups
    ]


def as_tensors(groups, device):
    steps = [step for group in groups for rollout in group for step in rollout["steps"]]
    lengths = [len(rollout["steps"]) for group in groups for rollout in group]
    return {
        "reward": torch.tensor([x for _, _, x in steps], dtype=torch.float64, device=device),
        "outcome": torch.tensor([r["outcome"] for g in groups for r in g], dtype=torch.float64, device=device),
        "offsets": torch.tensor([0, *lengths], device=device).cumsum(0),
        "rollout_group": torch.tensor([i for i, g in enumerate(groups) for _ in g], device=device),
        "state": torch.tensor([s for s, _, _ in steps], device=device),
        "action": torch.tensor([a for _, a, _ in steps], device=device),
    }


def largest_difference(ours, other) -> float:
    other = torch.as_tensor(other, dtype=torch.float64)
    return (ours.double().cpu() - other.cpu()).abs().max().item()


def estimator_cases(quick: bool) -> Iterator[Case]:
    columns = steps_of_groups(64, 8, 50, shuffled=True, dtype=torch.float32)
    arrays = {name: column.numpy() for name, column in columns.items()}
    table = rtmc.StepTable(**columns)
    rows = len(table)
    label = f"{rows:,} shuffled rows of 64 x 8 x 50"

    def fresh():
        return rtmc.advantages(rtmc.StepTable(**columns), "rtmc")

    def again():
        return rtmc.advantages(table, "rtmc")

    def op_alone():
        # The index is the depth without gaps, so a row's place in time order needs no sort.
        counts = torch.bincount(columns["rollout"], minlength=len(columns["group"]))
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        place = offsets[columns["rollout"]] + columns["index"]
        ordered = {
            name: torch.empty_like(columns[name]).scatter_(0, place, columns[name])
            for name in ("reward", "state", "action")
        }
        known = {"outcome": columns["outcome"], "offsets": offsets, "rollout_group": columns["group"]}
        options = {"gamma": 0.99, "prior_visits": 2.0, "prior": "success_rate"}
        return rollout_tree_advantages(**ordered, **known, **options).advantage[place]

    in_numpy = {"numpy: unique, bincount, lexsort": lambda: torch.from_numpy(rtmc_in_numpy(arrays, 0.99, 2.0))}
    candidates = {"rollout_tree_advantages": op_alone, **in_numpy}
    yield Case(f"RTMC, the op, {label}", candidates, agree=largest, bound=1e-5, rows=rows)
    for name, ours in (("a new table", fresh), ("the table again", again)):
        candidates = {'rtmc.advantages(table, "rtmc")': ours, **in_numpy}
        yield Case(f"RTMC, {name}, {label}", candidates, agree=largest, bound=1e-5, rows=rows)

    ordered, place = table.time_order()
    batch = {
        "reward": ordered.reward.float() + torch.where(columns["next_state"][place] < 0, outcome_of(ordered), 0.0),
        "episode_return": outcome_of(ordered),
        "group": as_objects([f"task {g}" for g in ordered.group[ordered.rollout].tolist()]),
        "observation": as_objects([f"observation {s}" for s in ordered.state.tolist()]),
        "rollout": as_objects([f"rollout {r}" for r in ordered.rollout.tolist()]),
    }
    row_by_row = {"GiGPO's pass, row by row": lambda: gigpo_row_by_row(batch, 0.95)}
    yield Case(f"RTMC beside GiGPO, {label}", {'rtmc.advantages(table, "rtmc")': fresh, **row_by_row}, rows=rows)
    if not quick:
        for shuffled, order in ((False, "in order"), (True, "shuffled")):
            many = steps_of_groups(25_000, 8, 50, shuffled, torch.float32)

            def through(many=many):
                return rtmc.advantages(rtmc.StepTable(**many), "rtmc")

            rows = len(many["rollout"])
            name = f"RTMC, a new table, {rows:,} rows {order}, 25,000 x 8 x 50"
            yield Case(name, {'rtmc.advantages(table, "rtmc")': through}, rows=rows)


def outcome_of(table: rtmc.StepTable) -> torch.Tensor:
    """(S,) float32 outcome of each row's rollout."""
    return table.outcome[table.rollout].float()


def cases(quick: bool) -> Iterator[Case]:
    yield from estimator_cases(quick)
    yield from dictionary_cases(quick)


def dictionary_cases(quick: bool) -> Iterator[Case]:
    rng = random.Random(0)
    tasks, rollouts, steps = 8, 64, 50
    groups = [make_group(rng, rollouts, steps) for _ in range(tasks)]
    numbered = as_ids(groups)
    label = f"RTMC advantages, {tasks * rollouts * steps:,} steps"

    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        tensors = as_tensors(numbered, device)

        def ours(tensors=tensors):
            return rollout_tree_advantages(
                **tensors, gamma=GAMMA, prior_visits=PRIOR_VISITS, prior="success_rate"
            ).advantage

        candidates = {"rollout_tree_advantages": ours}
        candidates["dictionaries on ids"] = lambda: dictionary_advantages(numbered, GAMMA, PRIOR_VISITS)
        if not quick:
            candidates["dictionaries on strings"] = lambda: dictionary_advantages(groups, GAMMA, PRIOR_VISITS)
        yield Case(label, candidates, device, agree=largest_difference, bound=1e-12)

    rows = [
        {"group": g, "rollout": (g, r), "index": t, "state": s, "action": a, "reward": x, "outcome": rollout["outcome"]}
        for g, group in enumerate(groups)
        for r, rollout in enumerate(group)
        for t, (s, a, x) in enumerate(rollout["steps"])
    ]  # fmt: skip
    table = rtmc.StepTable.from_rows(rows, dtype=torch.float64)
    candidates = {
        'rtmc.advantages(table, "rtmc")': lambda: rtmc.advantages(
            table, "rtmc", gamma=GAMMA, prior_visits=PRIOR_VISITS
        ),
        "dictionaries on strings": lambda: dictionary_advantages(groups, GAMMA, PRIOR_VISITS),
    }
    yield Case(f"{label}, through the estimator", candidates, agree=largest_difference, bound=1e-12)
    candidates = {
        "StepTable.from_rows + advantages": lambda: rtmc.advantages(
            rtmc.StepTable.from_rows(rows, dtype=torch.float64), "rtmc", gamma=GAMMA, prior_visits=PRIOR_VISITS
        ),
        "dictionaries on strings": lambda: dictionary_advantages(groups, GAMMA, PRIOR_VISITS),
    }
    yield Case(f"{label}, from rows of text", candidates, agree=largest_difference, bound=1e-12)
