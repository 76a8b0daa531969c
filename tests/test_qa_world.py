"""The embedded set: facts agree with passages, answers are unique, splits are apart, and one search is not enough."""

import re
import subprocess
import sys

import pytest

from rtmc.gymenvs.qa.generated import HOPS, SPLITS, ask, follow, make_questions, side_of
from rtmc.gymenvs.qa.metrics import normalize_answer
from rtmc.gymenvs.qa.relations import RELATIONS, facts_in
from rtmc.gymenvs.qa.world import World, make_world


@pytest.fixture(scope="module")
def world():
    return make_world(0)


def stated(passages):
    """Facts by a reading of the sentences of its own: each wording as literal pieces around two names."""
    found = []
    for passage in passages:
        for sentence in passage.text.split(". "):
            sentence = sentence.rstrip(".") + "."
            for relation in RELATIONS.values():
                for wording in relation.sentences:
                    pieces = re.split(r"\{[so]\}", wording)
                    if not (sentence.startswith(pieces[0]) and sentence.endswith(pieces[2])):
                        continue
                    inner = sentence[len(pieces[0]) : len(sentence) - len(pieces[2])]
                    if pieces[1] in inner:
                        one, other = inner.split(pieces[1], 1)
                        subject_first = wording.index("{s}") < wording.index("{o}")
                        subject, thing = (one, other) if subject_first else (other, one)
                        found.append((passage.title, subject, relation.name, thing))
    return found


def test_passages_state_every_fact_once_and_no_other(world):
    found = stated(world.passages)
    assert len(found) == len(world.facts)
    assert {(subject, relation): thing for _, subject, relation, thing in found} == world.facts
    assert all(title == subject for title, subject, _, _ in found)
    told = [fact for passage in world.passages for fact in facts_in(passage.text)]
    assert sorted(told) == sorted((subject, relation, thing) for _, subject, relation, thing in found)


def test_names_are_unique_and_titles_too(world):
    names = [one.name for one in world.things]
    assert len({normalize_answer(name) for name in names}) == len(names) > 5000
    assert len({passage.title for passage in world.passages}) == len({p.id for p in world.passages}) == 6000


def test_facts_are_of_the_right_kinds_and_agree(world):
    for (subject, name), thing in world.facts.items():
        relation = RELATIONS[name]
        assert world.kind_of[subject] == relation.subject
        assert relation.object == ("year" if thing.isdecimal() else world.kind_of[thing])
        if name == "teacher":
            assert 20 <= int(world.facts[subject, "birth year"]) - int(world.facts[thing, "birth year"]) <= 45


def ends(world, start, relations):
    """All ends of a chain by going through every fact: a join, where `follow` looks up."""
    reached = {start}
    for name in relations:
        reached = {
            thing for (subject, relation), thing in world.facts.items() if relation == name and subject in reached
        }
    return reached


@pytest.mark.parametrize("split", SPLITS)
def test_answers_are_unique_by_exhaustive_join(world, split):
    made = make_questions(split)
    assert len(made) == SPLITS[split]
    for number, (question, program) in enumerate(made[:: len(made) // 40]):
        found = [ends(world, start, program.relations) for start in program.starts]
        assert all(len(one) == 1 for one in found), question
        assert question.answers == (min(min(one) for one in found),)
        assert question.hops in HOPS, number


@pytest.mark.parametrize("split", SPLITS)
def test_questions_are_fair(world, split):
    made = make_questions(split)
    assert len({one.question.text for one in made}) == len(made)
    for number, (question, program) in enumerate(made):
        assert question.id == f"{split}/{number}"
        assert question.hops == number % 4 + 1 == len(question.support)
        assert question.text == ask(program)
        assert f" {normalize_answer(question.answers[0])} " not in f" {normalize_answer(question.text)} "
        paths = [follow(world, start, program.relations) for start in program.starts]
        assert {title for (title,) in question.support} == {name for path in paths for name in path[:-1]}
        for path in paths:
            assert len(set(path)) == len(path)
            assert side_of(path[0]) == side_of(path[-2]) == split


def test_no_answering_fact_is_of_both_splits():
    def answering(split):
        world = make_world(0)
        return {
            (follow(world, start, program.relations)[-2], program.relations[-1])
            for _, program in make_questions(split)
            for start in program.starts
        }

    assert answering("train").isdisjoint(answering("valid"))


def test_the_same_seed_gives_the_same_world_in_another_process():
    code = (
        "import hashlib; from rtmc.gymenvs.qa.world import make_world; "
        "from rtmc.gymenvs.qa.generated import make_questions;"
        "print(hashlib.sha256(repr((make_world().passages, make_questions('valid'))).encode()).hexdigest())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert World(1).facts != make_world(0).facts


def test_one_search_is_not_enough_and_the_oracle_finds_all(tmp_path, monkeypatch):
    pytest.importorskip("bm25s", reason="the embedded search needs the extra `envs`")
    from rtmc.gymenvs.qa import sources
    from rtmc.gymenvs.qa.policies import measure

    monkeypatch.setenv("RTMC_CACHE", str(tmp_path))
    sources.embedded_retriever.cache_clear()
    scores = measure("valid", 80)
    sources.embedded_retriever.cache_clear()
    assert scores["no search"]["all"] < 0.1
    assert scores["one search"]["1"] > 0.8
    assert all(scores["one search"][hops] < 0.1 for hops in "234")
    assert all(scores["oracle"][hops] > 0.9 for hops in "1234")
    assert (tmp_path / "qa").is_dir()


def test_unknown_split():
    with pytest.raises(ValueError, match="'vaild'"):
        make_questions("vaild")
