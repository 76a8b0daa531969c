"""How hard the embedded questions are: scripted policies, played through the environment itself.

    python -m rtmc.gymenvs.qa.policies            # exact match of each policy on `valid`, by hops

- no search: the commonest answer of `train` to the question's last relation; of the older of two, the commonest year;
- one search: asks the question itself, reads the passages shown, and answers if they hold every fact it needs, else
  says the last thing that it got to;
- oracle: asks for the names on the chain as it comes to know them, reads, and answers.

The last two read the environment's text, and know the sentences of the world and how each question is put together: a
model can do no better with the same passages. None of them sees an answer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from rtmc.gymenvs.qa.env import SearchQAEnv
from rtmc.gymenvs.qa.generated import Made, Program, follow, make_questions
from rtmc.gymenvs.qa.relations import facts_in
from rtmc.gymenvs.qa.world import make_world

Facts = dict[tuple[str, str], str]
# Plays one episode that was just reset, and gives its exact match.
Policy = Callable[[SearchQAEnv, Made], float]


def reached(facts: Facts, program: Program) -> list[list[str]]:
    """For each start of a program the chain as far as the facts go, the start included."""
    paths = []
    for start in program.starts:
        path = [start]
        for relation in program.relations:
            if (path[-1], relation) not in facts:
                break
            path.append(facts[path[-1], relation])
        paths.append(path)
    return paths


def _read(text: str, facts: Facts) -> None:
    facts |= {(subject, relation): thing for subject, relation, thing in facts_in(_sentences(text))}


def _sentences(text: str) -> str:
    """The passages shown without what stands around them: a title is no part of a sentence."""
    lines = text.replace("<information>", "").replace("</information>", "").splitlines()
    return " ".join(line.partition(") ")[2] for line in lines if line.startswith("Doc "))


def _answer(env: SearchQAEnv, answer: str) -> float:
    return float(env.step(f"<answer>{answer}</answer>")[4]["em"])


def _say(env: SearchQAEnv, facts: Facts, program: Program) -> float:
    paths = reached(facts, program)
    whole = [path[-1] for path in paths if len(path) == len(program.relations) + 1]
    return _answer(env, min(whole) if len(whole) == len(paths) else paths[0][-1])


def no_search(env: SearchQAEnv, made: Made) -> float:
    """Answer without a search."""
    return _answer(env, _commonest()[made.program.relations[-1], len(made.program.starts)])


def one_search(env: SearchQAEnv, made: Made) -> float:
    """Search once, for the question, then answer."""
    facts: Facts = {}
    _read(env.step(f"<search>{made.question.text}</search>")[0], facts)
    return _say(env, facts, made.program)


def oracle(env: SearchQAEnv, made: Made) -> float:
    """Search for the names that are reached and not yet read about, until the chain is whole, then answer."""
    facts: Facts = {}
    for _ in range(env.max_turns - 1):
        paths = reached(facts, made.program)
        ends = [path[-1] for path in paths if len(path) <= len(made.program.relations)]
        if not ends:
            break
        _read(env.step(f"<search>{' '.join(dict.fromkeys(ends))}</search>")[0], facts)
    return _say(env, facts, made.program)


POLICIES: dict[str, Policy] = {"no search": no_search, "one search": one_search, "oracle": oracle}


@lru_cache(maxsize=1)
def _commonest() -> dict[tuple[str, int], str]:
    world = make_world()
    answers: dict[tuple[str, int], Counter[str]] = {}
    for made in make_questions("train"):
        program = made.program
        answer = min(follow(world, start, program.relations)[-1] for start in program.starts)
        answers.setdefault((program.relations[-1], len(program.starts)), Counter())[answer] += 1
    return {key: min(count, key=lambda answer: (-count[answer], answer)) for key, count in answers.items()}


def measure(split: str = "valid", questions: int | None = None, **options: int) -> dict[str, dict[str, float]]:
    """Exact match of each policy, by hops (`"1"` to `"4"`) and over `"all"`.

    Args:
        split: `train` or `valid`.
        questions: how many, from the split's first on; None = all.
        options: of the environment, e.g. `top_k` or `max_turns`.

    Raises:
        ValueError: the split or an option is none.
    """
    env = SearchQAEnv(split=split, **options)  # type: ignore[arg-type]  # numbers go to arguments that are numbers
    played = make_questions(split)[:questions]
    scores: dict[str, dict[str, float]] = {}
    for name, policy in POLICIES.items():
        won: dict[str, list[float]] = {}
        for made in played:
            env.reset(options={"task": made.question})
            em = policy(env, made)
            for key in (str(made.question.hops), "all"):
                won.setdefault(key, []).append(em)
        scores[name] = {key: sum(won[key]) / len(won[key]) for key in sorted(won)}
    return scores


def main() -> None:
    """Print the table; `--json` prints one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m rtmc.gymenvs.qa.policies", description="How hard the set is.")
    parser.add_argument("--split", default="valid", help="train or valid")
    parser.add_argument("--questions", type=int, help="how many, from the first on (default: all)")
    parser.add_argument("--top-k", type=int, default=3, help="passages of one search")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    words = parser.parse_args()
    scores = measure(words.split, words.questions, top_k=words.top_k)
    if words.json:
        print(json.dumps(scores))
        return
    columns = list(next(iter(scores.values())))
    print(f"exact match on {words.split}, top {words.top_k}, by hops")
    print(" " * 12 + "".join(f"{column:>8}" for column in columns))
    for name, row in scores.items():
        print(f"{name:<12}" + "".join(f"{row[column]:>8.3f}" for column in columns))


if __name__ == "__main__":
    main()
