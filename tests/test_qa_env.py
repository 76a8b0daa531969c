"""`rtmc/SearchQA-v0` as gymnasium sees it, its answers word by word, its states, forks, and searches that fail."""

import pickle
import subprocess
import sys
import warnings

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="environments need the extra `envs`")

from gymnasium.error import ResetNeeded  # noqa: E402 -- after the skip
from gymnasium.utils.env_checker import check_env  # noqa: E402 -- after the skip
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv  # noqa: E402 -- after the skip

from rtmc.gymenvs.qa import Question, SearchQAEnv, Snapshot  # noqa: E402 -- after the skip
from rtmc.gymenvs.qa.retrieval import Hit, HttpRetriever, Passage  # noqa: E402 -- after the skip

ID = "rtmc.gymenvs:rtmc/SearchQA-v0"
PASSAGES = [
    Passage.made("d2", "Velmar Works", "Velmar Works is old. It was founded by Ana Dorr! Ana liked tea."),
    Passage.made("d1", "Ana Dorr", "Ana Dorr was born in Kesh. She is dead."),
    Passage.made("d3", "Kesh", "Kesh is a town."),
]
QUESTION = Question(
    "q1", "Where was the founder of Velmar Works born?", ("Kesh", "the town of Kesh"), hops=2,
    searches=("Velmar Works", "Ana Dorr"),
)  # fmt: skip


class Titles:
    """Finds the passages whose title the query names."""

    def search(self, queries, k):
        return [[Hit(p, 1.0) for p in PASSAGES if p.title.lower() in q.lower()][:k] for q in queries]


def make(**options):
    return SearchQAEnv(**{"questions": [QUESTION], "retriever": Titles(), **options})


def play(env, *messages):
    env.reset()
    return [env.step(message) for message in messages][-1]


@pytest.mark.parametrize(
    "options", [{}, {"split": "valid", "actions": "tools", "observation": "plain"}, {"hops": (1, 3), "reward": "f1"}]
)
def test_check_env_without_warnings(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ID, **options)
        check_env(env.unwrapped, skip_render_check=True)
        env.reset(seed=0)
        env.step("<answer>é 北</answer>")
        env.close()


def test_the_first_observation_and_the_frame():
    env = make()
    text, info = env.reset()
    assert text.endswith("Question: Where was the founder of Velmar Works born?\n")
    assert "<think>" in text
    assert make(instructions=False).reset()[0] == "Question: Where was the founder of Velmar Works born?\n"
    assert (info["task_id"], info["action_key"], info["valid"], info["success"]) == ("q1", None, True, False)
    text, reward, terminated, truncated, info = env.step("<think>t</think><search>Velmar Works, Ana Dorr</search>")
    assert text == (
        '\n\n<information>Doc 1(Title: "Velmar Works") '
        "Velmar Works is old. It was founded by Ana Dorr! Ana liked tea.\n"
        'Doc 2(Title: "Ana Dorr") Ana Dorr was born in Kesh. She is dead.</information>\n\n'
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["documents"] == ["d2", "d1"]
    assert info["state_key"] == "asked:velmar works ana dorr|seen:d1;d2"
    assert info["action_key"] == "search:velmar works ana dorr"


def test_plain_results_are_cut_and_counted():
    text = play(make(observation="plain", top_k=1, passage_chars=15), "<search>velmar works ana dorr</search>")[0]
    assert text == 'Doc 1(Title: "Velmar Works") Velmar Works...'
    assert play(make(observation="plain"), "<search>nowhere</search>")[0] == "No results found."


@pytest.mark.parametrize(
    ("reward", "answer", "paid", "em", "score"),
    [
        ("em", "kesh.", 1, 1, 1), ("em", "Kesh city", 0, 0, 2 / 3), ("f1", "Kesh city", 2 / 3, 0, 2 / 3),
        ("sub_em", "It is Kesh city", 1, 0, 0.4), ("em", "Rome", 0, 0, 0), ("f1", "The Town of Kesh", 1, 1, 1),
    ],
)  # fmt: skip
def test_rewards(reward, answer, paid, em, score):
    text, got, terminated, truncated, info = play(make(reward=reward), f"<answer>{answer}</answer>")
    assert (text, terminated, truncated) == ("", True, False)
    assert got == pytest.approx(paid)
    assert (info["em"], info["success"], info["answer"]) == (em, em == 1, answer)
    assert info["f1"] == pytest.approx(score)


def test_the_format_reward_wants_every_message_well_formed():
    well, ill = "<think>a</think><search>kesh</search>", "<search>kesh</search>"
    answer = "<think>b</think><answer>Kesh</answer>"
    assert play(make(format_reward=0.25), well, answer)[1] == 1.25
    assert play(make(format_reward=0.25), ill, answer)[1] == 1.0
    assert play(make(format_reward=0.25), well, "<think>b</think><answer>x</answer>")[1] == 0.25
    assert play(make(format_reward=0.25), well, well, well, well)[1:4] == (0.0, False, True)


def test_invalid_actions_cost_a_turn_and_say_why():
    env = make()
    for _ in range(3):
        text, reward, terminated, truncated, info = (env.reset(), env.step("<search></search>"))[1]
    assert text == (
        "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
        "If I want to give the final answer, I should put the answer between <answer> and </answer>. "
        "Let me try again.\n"
    )
    assert (reward, terminated, truncated, info["valid"], info["action_key"]) == (0.0, False, False, False, "invalid")
    assert "empty" in info["error"]
    assert info["state_key"] == "asked:|seen:"
    assert [env.step("x")[3] for _ in range(3)] == [False, False, True]
    assert "takes one text" in play(make(actions="tools"), "search('a', 'b')")[0]
    with pytest.raises(TypeError, match="int"):
        make_and_reset().step(3)


def make_and_reset(**options):
    env = make(**options)
    env.reset()
    return env


@pytest.mark.parametrize("turns", [1, 4])
def test_the_turn_limit(turns):
    env = make_and_reset(max_turns=turns)
    ends = [env.step("<search>kesh</search>")[2:4] for _ in range(turns)]
    assert ends == [(False, False)] * (turns - 1) + [(False, True)]
    with pytest.raises(ResetNeeded):
        env.step("<answer>x</answer>")
    env.reset()
    # An answer with the last message counts, and is no truncation.
    assert [env.step(m)[2:4] for m in ["bad"] * (turns - 1) + ["<answer>x</answer>"]][-1] == (True, False)
    with pytest.raises(ResetNeeded):
        make().step("x")


def test_a_repeated_query_is_remarked_on():
    first, again = "<search>The Kesh!</search>", "<search>kesh</search>"
    text, info = play(make(), first, again)[::4]
    assert "searched for before" in text
    assert "Doc 1(Title" in text
    assert info["state_key"] == "asked:kesh|seen:d3"
    assert "before" not in play(make(repeat_notice=False), first, again)[0]


class Exactly:
    """Finds for each query what it was told, and nothing for others."""

    def __init__(self, **found):
        self.found = found

    def search(self, queries, k):
        return [[Hit(PASSAGES[at], 1.0) for at in self.found.get(query, ())] for query in queries]


def test_the_notice_of_a_repetition_is_true():
    def told(first, second, **found):
        return play(make(retriever=Exactly(**found)), f"<search>{first}</search>", f"<search>{second}</search>")[0]

    assert "before" not in told("C++", "C#", **{"C++": (0,), "C#": (1,)})
    assert "before" not in told("The Who", "Who", **{"The Who": (0,), "Who": (1,)})
    assert "before" in told("Who", "Who")  # twice nothing
    assert "before" in told("The Who", "who?", **{"The Who": (0, 1), "who?": (0, 1)})
    assert "before" not in told("The Who", "who?", **{"The Who": (0, 1), "who?": (1, 0)})
    # The same id with another text is another result.
    other = [[Hit(Passage("d2", "x"), 1.0)]]
    env = make_and_reset(retriever=Failing([[Hit(PASSAGES[0], 1.0)]], other))
    env.step("<search>a b</search>")
    assert "before" not in env.step("<search>a b</search>")[0]


def test_no_key_is_empty_and_signs_tell_queries_apart():
    def keys(*messages, **options):
        info = play(make(**options), *messages)[4]
        return info["action_key"], info["state_key"]

    assert keys("<search>?</search>") == ("search:?", "asked:?|seen:")
    assert keys("<search>!!</search>")[0] == "search:!!"
    assert keys("<search>The</search>")[0] == "search:the"
    assert keys("<search>The C++?</search>", "<search>C#.</search>") == ("search:c#", "asked:c#;c++|seen:")
    assert keys("<search>Spider-Man, AT&T</search>")[0] == "search:spiderman at&t"
    assert keys("<answer>The</answer>") == ("answer:the", "asked:|seen:|answered:the")
    assert keys("<answer>?</answer>")[1].endswith("answered:?")
    assert keys("lookup(C++)", "lookup(C#)", actions="tools") == ("lookup:c#", "asked:lookup:c#*0;lookup:c++*0|seen:")


def test_lookup_goes_through_the_passages_seen():
    env = make_and_reset(actions="tools", observation="plain", max_turns=9)
    assert env.step("lookup(ana)")[0].startswith("No results")
    env.step("search(velmar works)")
    env.step("search(ana dorr)")
    # By the passages' ids: d1 before d2.
    told = [env.step("lookup(Ana)")[::4] for _ in range(4)]
    assert [text for text, _ in told] == [
        "(Result 1 / 3) Ana Dorr: Ana Dorr was born in Kesh.",
        "(Result 2 / 3) Velmar Works: It was founded by Ana Dorr!",
        "(Result 3 / 3) Velmar Works: Ana liked tea.",
        "No more results: the keyword was looked up to the end.",
    ]
    assert "lookup:ana*2" in told[1][1]["state_key"]
    assert told[2][1]["state_key"] == told[3][1]["state_key"]
    assert told[0][1]["action_key"] == "lookup:ana"
    assert env.step("finish(Kesh)")[1] == 1.0


def test_equal_keys_whatever_the_order():
    def key(*queries):
        return play(make(), *(f"<search>{q}</search>" for q in queries))[4]["state_key"]

    assert key("kesh", "ana dorr") == key("Ana Dorr", "bad", "kesh").replace("bad;", "")
    assert key("kesh", "ana dorr") != key("kesh ana dorr")  # another query, though the same passages
    assert len(key("x" * 2000)) < 300
    assert key("x" * 2000) != key("x" * 1999 + "y")


class Failing:
    def __init__(self, *answers):
        self.answers = list(answers)

    def search(self, queries, k):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    "answer",
    [
        TimeoutError("late"),
        RuntimeError("x"),
        KeyError("y"),
        None,
        [],
        "docs",
        [["hit"]],
        [None],
        [[Hit(None, 1.0)]],
        [[]] * 2,
    ],
)
def test_a_search_that_fails_is_told_and_the_episode_goes_on(answer):
    env = make_and_reset(retriever=Failing(answer, [[Hit(PASSAGES[2], 1.0)]]))
    text, reward, terminated, truncated, info = env.step("<search>kesh</search>")
    assert "Error: the search failed" in text
    assert info["error"]
    assert (reward, terminated, truncated, info["valid"], info["action_key"]) == (
        0.0,
        False,
        False,
        True,
        "search:kesh",
    )
    assert info["state_key"] == "asked:|seen:"
    text, *_, info = env.step("<search>kesh</search>")
    assert (info["error"], info["documents"]) == (None, ["d3"])
    assert "before" not in text


def test_a_server_that_is_not_there_ends_nothing():
    env = make_and_reset(retriever=HttpRetriever("http://127.0.0.1:9", retries=0, timeout=2))
    *_, truncated, info = env.step("<search>kesh</search>")
    assert not truncated
    assert "127.0.0.1:9" in info["error"]


def test_a_fork_lives_its_own_life():
    env = make_and_reset()
    env.step("<search>velmar works</search>")
    saved = pickle.loads(pickle.dumps(env.snapshot()))
    assert isinstance(saved, Snapshot)
    there = env.step("<search>ana dorr</search>")
    env.step("<answer>Rome</answer>")
    other = make()
    info = other.restore(saved)
    assert (info["state_key"], info["action_key"], info["valid"]) == ("asked:velmar works|seen:d2", None, True)
    assert other.step("<search>ana dorr</search>") == there
    assert other.step("<answer>Kesh</answer>")[1] == 1.0
    env.restore(saved)
    assert [env.step("x")[3] for _ in range(3)] == [False, False, True]  # the turns came along
    with pytest.raises(TypeError, match="dict"):
        env.restore({})


def test_the_plan_leads_to_the_answer_from_anywhere():
    for options in ({}, {"actions": "tools"}, {"max_turns": 2}):
        env = make_and_reset(**options)
        for message in env.expert_plan():
            *_, info = env.step(message)
        assert info["success"]
        assert env.expert_plan() is None
    env = make_and_reset()
    env.step("<search>velmar works</search>")
    assert env.expert_plan() == ["<search>Ana Dorr</search>", "<answer>Kesh</answer>"]


def episode(env, seed):
    text, info = env.reset(seed=seed)
    told = [text, info]
    for message in ("<search>Velmar</search>", "bad", "<answer>x</answer>"):
        told += env.step(message)
    return told


def test_a_seed_fixes_the_whole_episode():
    pytest.importorskip("bm25s", reason="the embedded search needs the extra `envs`")
    env = gymnasium.make(ID)
    first = episode(env, 123)
    assert episode(env, 123) == first
    assert episode(gymnasium.make(ID), 123) == first
    assert len({env.reset(seed=seed)[1]["task_id"] for seed in range(6)}) > 1
    code = f"import gymnasium; print(gymnasium.make('{ID}').reset(seed=123)[1]['task_id'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == first[1]["task_id"]


def test_tasks_by_number_by_id_and_by_hops():
    env = SearchQAEnv(split="valid")
    ids = [env.reset()[1]["task_id"] for _ in range(3)]
    assert ids == ["valid/0", "valid/1", "valid/2"]
    first, told = env.reset(options={"task": "train/7"})
    assert env.reset(options={"task": "train/7"}) == (first, told)
    assert env.reset()[1]["task_id"] == "valid/3"
    assert env.reset(options={"task": QUESTION.to_json()})[1]["task_id"] == "q1"
    hops = SearchQAEnv(hops=(4, 2))
    assert [hops.reset()[1]["hops"] for _ in range(4)] == [2, 4, 2, 4]
    assert {hops.reset(seed=s)[1]["hops"] for s in range(20)} == {2, 4}
    assert SearchQAEnv(task="valid/9").reset(seed=5)[1]["task_id"] == "valid/9"


MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


def lived(kind, mode):
    makers = [lambda turns=turns: make(max_turns=turns) for turns in (1, 2)]
    vector = SyncVectorEnv(makers, autoreset_mode=mode) if kind == "sync" else AsyncVectorEnv(
        makers, shared_memory=False, autoreset_mode=mode
    )  # fmt: skip
    told = [vector.reset(seed=3)]
    told += [vector.step(("<search>kesh</search>", "<answer>Kesh</answer>")) for _ in range(4)]
    vector.close()
    return told


@pytest.mark.parametrize("mode", MODES)
def test_sync_and_async_agree(mode):
    sync, other = lived("sync", mode), lived("async", mode)
    assert [one[0] for one in sync] == [one[0] for one in other]
    assert all(isinstance(one[0], tuple) for one in sync)
    assert [{k: list(map(str, v)) for k, v in one[-1].items() if k.endswith("key")} for one in sync] == [
        {k: list(map(str, v)) for k, v in one[-1].items() if k.endswith("key")} for one in other
    ]


def test_same_step_autoreset_keeps_the_last_episode():
    vector = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    start, _ = vector.reset()
    texts, rewards, _, _, info = vector.step(("<answer>Kesh</answer>", "<search>kesh</search>"))
    assert (texts[0], rewards.tolist()) == (start[0], [1.0, 0.0])
    assert (info["final_obs"][0], info["final_info"]["answer"][0]) == ("", "Kesh")
    assert info["final_info"]["state_key"][0].endswith("answered:kesh")
    vector.close()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"split": "vaild"}, "did you mean 'valid'"),
        ({"split": "valid", "questions": [QUESTION]}, "leave it out"),
        ({"max_turns": 0}, "max_turns"), ({"max_turns": True}, "max_turns"), ({"top_k": 0}, "top_k"),
        ({"passage_chars": 5}, "passage_chars"), ({"actions": "tool"}, "did you mean 'tools'"),
        ({"observation": "x"}, "observation"), ({"reward": "acc"}, "reward"), ({"format_reward": -1}, "format_reward"),
        ({"format_reward": float("inf")}, "finite"), ({"format_reward": float("nan")}, "finite"),
        ({"hops": 5}, "1 to 4 hops"), ({"hops": ()}, "hops"), ({"hops": 3, "questions": [QUESTION]}, "none of the 1"),
        ({"task": "valid/400"}, "valid/399"), ({"task": "valid/-1"}, "unknown task id"), ({"task": "{}"}, "fields"),
        ({"retriever": "nowhere.jsonl"}, "does not exist"), ({"questions": [QUESTION, QUESTION]}, "same id"),
    ],
)  # fmt: skip
def test_bad_arguments(options, part):
    with pytest.raises(ValueError, match=part):
        SearchQAEnv(**options)


def test_bad_kinds_of_arguments_and_options():
    for name in ("strict", "instructions", "repeat_notice"):
        with pytest.raises(TypeError, match=name):
            make(**{name: "no"})
    for options in ({"retriever": object()}, {"task": 3}, {"questions": [3]}):
        with pytest.raises(TypeError, match="Search QA"):
            SearchQAEnv(**options)
    with pytest.raises(ValueError, match="'tsak'"):
        make().reset(options={"tsak": "x"})


def test_a_corpus_of_one_s_own_and_the_passages_of_the_questions(tmp_path, monkeypatch):
    pytest.importorskip("bm25s", reason="BM25 needs the extra `envs`")
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "c.jsonl"
    file.write_text('{"id": "k", "contents": "\\"Kesh\\"\\nKesh is a town."}\n')
    assert play(make(retriever=str(file)), "<search>kesh</search>")[4]["documents"] == ["k"]
    file.write_text('{"id": "new", "contents": "\\"Kesh\\"\\nKesh was a town once."}\n')
    assert play(make(retriever=file), "<search>kesh</search>")[4]["documents"] == ["new"]
    own = Question("q", "Where?", ("x",), context=(("Kesh", "A town."), ("Rome", "A city.")))
    assert "A town." in play(make(questions=[own], retriever=None), "<search>kesh</search>")[0]
    with pytest.raises(ValueError, match="bring no passages"):
        play(make(retriever=None), "<search>kesh</search>")
    file.write_text('{"id": "k"}\n')
    with pytest.raises(ValueError, match="line 1"):
        make(retriever=str(file))
