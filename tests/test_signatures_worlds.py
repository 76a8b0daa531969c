"""`qa` and `household`: by hand-worked steps, real ReAct logs, and episodes of the real ALFWorld engine."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc import Rollout, SignatureError, Step
from rtmc.signatures import get_signature
from rtmc.signatures.qa import normal_form

WIKI = "Could not find [Wolf and Sheep]. Similar: ['Wolf and Sheep', 'Sheep and Wolves']"


def tool(name, **arguments):
    return [{"id": "1", "function": {"name": name, "arguments": json.dumps(arguments)}}]


def told(signature, steps):
    """(states before each step and after the last, actions)."""
    for place, step in enumerate(steps[1:], 1):
        step.observation = steps[place - 1].answer or ""
    signature = get_signature(signature)
    state = signature.state(Rollout("t", "r", steps))
    states, actions = [state.key()], []
    for step in steps:
        actions.append(getattr(state, "action", signature.action)(step))
        state.update(step)
        states.append(state.key())
    return states, actions


# qa


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Beatles!", "beatles"),
        ("the-end", "theend"),
        ("An apple a day", "apple day"),
        ("Élan,", "élan"),
        ("", ""),
        ("A", "a"),
        ("The The!", "the the"),
        ("?!", "?!"),
    ],
)
def test_the_normal_form_is_that_of_grading(text, expected):
    assert normal_form(text) == expected


@pytest.mark.parametrize(
    ("step", "key"),
    [
        (Step("", "x", tool_calls=tool("search", query="The Wolf, and Sheep")), "search:wolf and sheep"),
        (Step("", "x", tool_calls=tool("wiki_search", queries=["b", "c"])), "search:b;search:c"),
        (Step("", "x", tool_calls=tool("finish", answer="Cannes!")), "answer:cannes"),
        (Step("", "x", tool_calls=tool("calculator", expression="1+1")), "calculator:expression 11"),
        (Step("", "<think>hm</think> <search> Wolf </search>"), "search:wolf"),
        (Step("", "<answer>Cannes</answer>"), "answer:cannes"),
        (Step("", "Thought 1: I search.\nAction 1: Search[Wolf (film)]"), "search:wolf film"),
        (Step("", "Lookup[directed by]"), "lookup:directed by"),
        (Step("", "Finish[yes]"), "answer:yes"),
        (Step("", "Action: search\nAction Input: Wolf"), "search:wolf"),
        (Step("", "I think it is Cannes."), "think"),
    ],
)
def test_what_an_agent_asks(step, key):
    assert get_signature("qa").action(step) == key


LOOKED = Step("", "", tool_calls=tool("search", query="Capital"), answer="Paris is the capital.")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Paris", "answer:paris"),
        ("Lyon.", "answer:lyon"),
        ("I looked it up.\n**Answer:** Paris", "answer:paris"),
        ("Final answer: The Hague\n", "answer:hague"),
        ("Answer: Lyon? No.\nAnswer: Paris.", "answer:paris"),
        ("So the answer is Paris. It lies on the Seine.", "answer:paris"),
        ("The answer is: St. Paul.", "answer:st paul"),
        ("Thus $\\boxed{42}$.", "answer:42"),
        ("I have no answer", "answer:i have no answer"),
        ("", "think"),
    ],
)
def test_a_last_message_without_a_call_is_the_answer(text, key):
    states, actions = told("qa", [LOOKED, Step("", text)])
    assert actions == ["search:capital", key]
    assert ("|answered:" in states[-1]) == (key != "think")
    assert told("qa", [Step("", text)])[1] == [key]  # without having looked


def test_what_is_no_answer_but_a_thought():
    said = Step("", "Paris")
    assert told("qa", [Step("", "Paris", answer="Go on."), LOOKED])[1][0] == "think"  # something came back
    tags = Step("", "<search>capital</search>", answer="Paris is the capital.")
    assert told("qa", [tags, said])[1] == ["search:capital", "think"]  # there it takes the tag
    react = Rollout("t", "r", [Step("", "Thought 1: it is Paris.")], meta={"format": "react"})
    assert get_signature("qa").state(react).action(react.steps[0]) == "think"


def test_documents_are_known_by_id_title_or_text():
    passages = '<information>Doc 1(Title: "Wolf") A film.\nDoc 2(Title: "Sheep") An animal.\n</information>'
    same = '<information>Doc 1(Title: "Sheep") An  animal.\nDoc 2(Title: "Wolf") a film.\n</information>'
    ids = '{"result": [[{"document": {"id": "12", "contents": "x"}, "score": 1.0}, {"document": {"id": "7"}}]]}'

    def seen(answer, query="q"):
        return told("qa", [Step("", f"<search>{query}</search>", answer=answer)])[0][1].partition("|seen:")[2]

    assert seen(passages) == seen(same)
    assert re.fullmatch(r"sheep#\w{6};wolf#\w{6}", seen(passages))
    assert seen(passages.replace("animal", "insect")) != seen(passages)
    assert seen(ids) == "12;7"
    assert (
        seen(WIKI) == seen("") == seen("Answer is INCORRECT") == seen("No Results") == seen("No results found.") == ""
    )
    assert re.fullmatch(r"no country for old#\w{6}", seen("No Country for Old Men is a film."))
    assert re.fullmatch(r"a#\w{6}", seen("Doc 1(Title: A) The letter."))
    assert re.fullmatch(r"wolf and sheep is#\w{6}", seen("Wolf and Sheep is a film. It won."))
    assert seen("(Result 1 / 2) Wolf is a film.") == seen("Wolf is a film.")


def test_order_does_not_show():
    a = Step("", "<search>x b</search>", answer="Page one.")
    b = Step("", "<search>c</search>", answer="Page two.")
    (states, _), (others, _) = told("qa", [a, b]), told("qa", [b, a])
    assert states[2] == others[2]
    assert len({states[1], others[1], states[2], states[0]}) == 4
    assert states[0] == "asked:|seen:"
    assert told("qa:documents=false", [a])[0][1] == "asked:x b"
    with pytest.raises(SignatureError, match="one of them true"):
        get_signature("qa", queries=False, documents=False)


def test_real_logs(shared):
    from rtmc import read_rollouts

    rollouts = list(read_rollouts(shared / "data" / "hotpot_react.jsonl"))
    answered = 0
    for rollout in rollouts:
        states, actions = told("qa", rollout.steps)
        given = [json.loads(call["function"]["arguments"]) for step in rollout.steps for call in step.tool_calls]
        queries = {normal_form(arguments["query"]) for arguments in given if "query" in arguments}
        asked = set(filter(None, states[-1].partition("|")[0].removeprefix("asked:").split(";")))
        assert queries == {query for query in asked if not query.startswith("lookup:")}
        assert "think" not in actions
        answers = [normal_form(arguments["answer"]) for arguments in given if "answer" in arguments]
        assert ("|answered:" in states[-1]) == bool(answers and answers[-1])
        answered += bool(answers)
    assert len(rollouts) == 116
    assert answered > 100


# household


def episode(steps):
    return told("household", [Step("", command, answer=answer) for command, answer in steps])


def test_facts_as_they_are_learned():
    states, actions = episode(
        [
            ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
            ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a cup 2, and a tomato 1."),
            ("take cup 2 from fridge 1", "You pick up the cup 2 from the fridge 1."),
            ("heat cup 2 with microwave 1", "You heat the cup 2 using the microwave 1."),
            ("cool cup 2 with fridge 1", "You cool the cup 2 using the fridge 1."),
            ("close fridge 1", "You close the fridge 1."),
            ("> think: now I put it away", "OK."),
            ("go to shelf 10", "You arrive at shelf 10. On the shelf 10, you see nothing."),
            ("put cup 2 in/on shelf 10", "You put the cup 2 in/on the shelf 10."),
            ("fly", "Nothing happens."),
            ("use desklamp 1", "You turn on the desklamp 1."),
        ]
    )
    assert states == [
        "",
        "at fridge 1|fridge 1 (closed)",
        "at fridge 1|fridge 1 (open): cup 2, tomato 1",
        "at fridge 1|holding cup 2|fridge 1 (open): tomato 1",
        "at fridge 1|holding cup 2|fridge 1 (open): tomato 1|cup 2 is hot",
        "at fridge 1|holding cup 2|fridge 1 (open): tomato 1|cup 2 is cool",
        "at fridge 1|holding cup 2|fridge 1 (closed): tomato 1|cup 2 is cool",
        "at fridge 1|holding cup 2|fridge 1 (closed): tomato 1|cup 2 is cool",
        "at shelf 10|holding cup 2|fridge 1 (closed): tomato 1|shelf 10: nothing|cup 2 is cool",
        "at shelf 10|fridge 1 (closed): tomato 1|shelf 10: cup 2|cup 2 is cool",
        "at shelf 10|fridge 1 (closed): tomato 1|shelf 10: cup 2|cup 2 is cool",
        "at shelf 10|fridge 1 (closed): tomato 1|shelf 10: cup 2|cup 2 is cool|desklamp 1 is on",
    ]
    assert actions[6] == "think"
    assert actions[8] == "move cup 2 to shelf 10"


def test_two_orders_of_looking_meet():
    look = {
        "go to shelf 2": "You arrive at shelf 2. On the shelf 2, you see a mug 1.",
        "go to shelf 10": "You arrive at shelf 10. On the shelf 10, you see nothing.",
    }
    a, b = list(look.items())
    assert episode([a, b, a])[0][-1] == episode([b, a])[0][-1] != episode([a, b])[0][-1]
    assert episode([("go to shelf 2", "On the shelf 2, you see a mug 1."), b, a])[0][-1] == episode([b, a])[0][-1]


@pytest.mark.parametrize(
    "text",
    [
        "go to fridge 1",
        "> go to fridge 1",
        "Action: Go to fridge 1.",
        "<think>x</think><action>go to fridge 1</action>",
    ],
)
def test_spellings_of_a_command(text):
    assert get_signature("household").action(Step("", text)) == "go to fridge 1"


def facts_of(key):
    """The state key as engine facts: (kind, ...)."""
    found = set()
    for fact in filter(None, key.split("|")):
        if fact.startswith("at "):
            continue
        if fact.startswith("holding "):
            found.add(("holds", fact.removeprefix("holding ")))
        elif " is " in fact:
            thing, _, states = fact.partition(" is ")
            found |= {("is" + {"on": "toggled"}.get(s, s), thing) for s in states.split(", ")}
        else:
            match = re.fullmatch(r"([a-z]+ \d+)(?: \((open|closed)\))?(?:: (.*))?", fact)
            if match[2] == "open":
                found.add(("opened", match[1]))
            if match[2] == "closed":
                found.add(("shut", match[1]))
            if match[3]:
                found |= {("in", thing, match[1]) for thing in match[3].split(", ") if thing != "nothing"}
    return found


def test_what_is_known_is_true_in_the_real_engine(shared):
    kinds = {"ishot", "iscool", "isclean", "issliced", "istoggled"}
    compared = 0
    for file in sorted((shared / "alfworld").glob("*.json")):
        game = json.loads(file.read_text())
        state = get_signature("household").state(Rollout("t", "r", []))
        true = {tuple(fact) if isinstance(fact, list) else fact for fact in game["facts"]}
        for step in game["steps"]:
            true = (true - set(map(_fact, step["facts_removed"]))) | set(map(_fact, step["facts_added"]))
            flat = {re.sub(r"\s+", " ", str(f)) for f in map(_spelled, true)}
            state.update(Step("", step["command"], answer=step["feedback"]))
            for fact in facts_of(state.key()):
                compared += 1
                if fact[0] == "in":
                    assert f"inreceptacle({fact[1]}, {fact[2]})" in flat, (file.name, step["command"], fact)
                elif fact[0] == "holds":
                    assert f"holds(agent1, {fact[1]})" in flat, (file.name, step["command"], fact)
                elif fact[0] == "opened":
                    assert f"opened({fact[1]})" in flat, (file.name, step["command"], fact)
                elif fact[0] == "shut":
                    assert f"opened({fact[1]})" not in flat, (file.name, step["command"], fact)
                else:
                    assert fact[0] in kinds
                    assert f"{fact[0]}({fact[1]})" in flat, (file.name, step["command"], fact)
            held = {f for f in flat if f.startswith("holds(")}
            assert bool(held) == any(f[0] == "holds" for f in facts_of(state.key()))
    assert compared > 1000


def _fact(fact):
    return tuple(fact) if isinstance(fact, list) else fact


def _spelled(fact):
    return fact if isinstance(fact, str) else f"{fact[0]}({', '.join(fact[1:])})"


# No text breaks them.

SHARDS = """<search> </search> <answer> Search[x] Finish[ Action: go to put in/on You arrive at The fridge 1 is open.
In it, you see a cup 2 Doc 1(Title: x) { [ {"id": 1} > think é nothing."""
WORDS = st.sampled_from([*SHARDS.split(), "\n", "\ud800"])
TEXT = st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=12).map(" ".join))
ARGUMENTS = st.dictionaries(
    st.sampled_from(["query", "queries", "answer", "x"]),
    TEXT | st.lists(TEXT | st.none(), max_size=3) | st.none(),
    max_size=3,
)
CALLS = st.lists(
    st.builds(
        lambda n, a: {"function": {"name": n, "arguments": a}},
        st.sampled_from(["search", "finish", "x"]) | TEXT,
        ARGUMENTS | TEXT,
    )
    | st.dictionaries(TEXT, TEXT, max_size=2),
    max_size=2,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(lambda a, o, c: Step("", a, answer=o, tool_calls=c), TEXT, st.none() | TEXT, CALLS),
        min_size=1,
        max_size=4,
    )
)
@pytest.mark.parametrize("signature", ["qa", "household", "tokens", "text"])
def test_no_text_breaks_them(signature, steps):
    states, actions = told(signature, steps)
    assert all(isinstance(key, str) for key in states[:-1] + actions)
