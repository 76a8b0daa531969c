"""Files of questions: each data set's own records, read by content; and what is said of broken ones."""

import gzip
import json

import pytest

from rtmc.gymenvs.qa import recordfile
from rtmc.gymenvs.qa.questions import Question, read_questions

HOTPOT = {
    "_id": "5a8b", "question": "Who?", "answer": "Ana", "type": "bridge", "level": "hard",
    "supporting_facts": [["A", 0], ["B", 2], ["A", 1]], "context": [["A", ["One. ", "Two."]], ["B", ["x"]]],
}  # fmt: skip
HOTPOT_HF = {
    "id": "5a8b", "question": "Who?", "answer": "Ana", "type": "bridge",
    "supporting_facts": {"title": ["A", "B", "A"], "sent_id": [0, 2, 1]},
    "context": {"title": ["A", "B"], "sentences": [["One. ", "Two."], ["x"]]},
}  # fmt: skip
MUSIQUE = {
    "id": "2hop__1_2", "question": "Who?", "answer": "Ana", "answer_aliases": ["Anna", "Ana"], "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "A", "paragraph_text": "One.", "is_supporting": True},
        {"idx": 1, "title": "B", "paragraph_text": "Two.", "is_supporting": False},
        {"idx": 2, "title": "C", "paragraph_text": "Three.", "is_supporting": True},
    ],
    "question_decomposition": [{"id": 1}, {"id": 2}],
}  # fmt: skip
SEARCH_R1 = {
    "data_source": "nq", "prompt": [{"role": "user", "content": "<answer> Beijing </answer>. Question: Who is it?\n"}],
    "ability": "fact-reasoning", "reward_model": {"style": "rule", "ground_truth": {"target": ["Ana", "Anna"]}},
    "extra_info": {"split": "test", "index": 7},
}  # fmt: skip
TRIVIA = {
    "Question": "Who?",
    "QuestionId": "tc_1",
    "Answer": {"Value": "Ana", "Aliases": ["Anna"], "NormalizedValue": "a"},
}


def write(tmp_path, records, name="file"):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(one) for one in records) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (HOTPOT, Question("5a8b", "Who?", ("Ana",), "bridge", 2, (("A", 0), ("B", 2), ("A", 1)), (),
                          (("A", "One. Two."), ("B", "x")))),
        (HOTPOT_HF, Question("5a8b", "Who?", ("Ana",), "bridge", 2, (("A", 0), ("B", 2), ("A", 1)), (),
                             (("A", "One. Two."), ("B", "x")))),
        ({**HOTPOT, "type": "inference", "evidences": [["A", "r", "B"]]},
         Question("5a8b", "Who?", ("Ana",), "inference", 2, (("A", 0), ("B", 2), ("A", 1)), (),
                  (("A", "One. Two."), ("B", "x")))),
        (MUSIQUE, Question("2hop__1_2", "Who?", ("Ana", "Anna"), "", 2, ((0,), (2,)), (),
                           (("A", "One."), ("B", "Two."), ("C", "Three.")))),
        ({"Question": "Who?", "Answer": "Ana"}, Question("0", "Who?", ("Ana",))),
        ({"question": "who?", "answer": ["Ana", "Anna"]}, Question("0", "who?", ("Ana", "Anna"))),
        (TRIVIA, Question("tc_1", "Who?", ("Ana", "Anna"))),
        ({"question": "Who?", "question_id": "t", "answer": {"value": "Ana", "aliases": ["Anna", "Ana"]}},
         Question("t", "Who?", ("Ana", "Anna"))),
        ({"id": 12, "question": "Who?", "possible_answers": '["Ana", "Anna"]', "prop": "author"},
         Question("12", "Who?", ("Ana", "Anna"), "author")),
        ({"id": "nq_1", "question": "who?", "golden_answers": ["Ana"], "metadata": {"type": "bridge"}},
         Question("nq_1", "who?", ("Ana",), "bridge")),
        (SEARCH_R1, Question("test/7", "Who is it?", ("Ana", "Anna"), "nq")),
        ({"id": "x", "text": "Who?", "answers": ["Ana"], "searches": ["a", "b"]},
         Question("x", "Who?", ("Ana",), searches=("a", "b"))),
    ],
)  # fmt: skip
def test_each_data_set_s_record(tmp_path, record, wanted):
    assert list(read_questions(write(tmp_path, [record]))) == [wanted]
    assert Question.from_json(json.dumps(record)) == wanted
    assert Question.from_json(wanted.to_json()) == wanted


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_json_list_is_read_piece_by_piece(tmp_path, monkeypatch, indent, piece):
    monkeypatch.setattr(recordfile, "_PIECE", piece)
    records = [{"_id": str(n), "question": f'Who is {n} ], [ \\" é?', "answer": "A", "context": []} for n in range(5)]
    path = tmp_path / "dev.json"
    path.write_text("﻿ \n" + json.dumps(records, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert [one.text for one in read_questions(path)] == [one["question"] for one in records]
    path.write_text(json.dumps(records)[:-30])
    with pytest.raises(ValueError, match="record 5: the JSON is broken or cut off"):
        list(read_questions(path))
    path.write_text("[]")
    assert list(read_questions(path)) == []


def test_reading_starts_before_the_file_ends(tmp_path):
    path = tmp_path / "long.json"
    path.write_text("[" + json.dumps({"question": "q", "answer": ["a"]}) + "," + " " * 3_000_000 + "{broken")
    assert next(read_questions(path)).text == "q"


def test_tables_objects_and_parquet(tmp_path):
    table = tmp_path / "bamboogle.csv"
    table.write_text('Question,Answer\n"Who, then?",Ana\nWho?,"An ""A"""\n')
    assert [(q.id, q.text, q.answers) for q in read_questions(table)] == [
        ("0", "Who, then?", ("Ana",)),
        ("1", "Who?", ('An "A"',)),
    ]
    table.write_text('id\tquestion\tpossible_answers\n5\tWho?\t"[""Ana""]"\n')
    assert [(q.id, q.answers) for q in read_questions(table)] == [("5", ("Ana",))]
    whole = tmp_path / "trivia.json"
    whole.write_text(json.dumps({"Data": [TRIVIA], "Version": 1.0}, indent=4))
    assert next(read_questions(whole)).answers == ("Ana", "Anna")
    arrow = pytest.importorskip("pyarrow", reason="parquet needs the extra `report`")
    files = pytest.importorskip("pyarrow.parquet", reason="parquet needs the extra `report`")
    parquet = tmp_path / "test.parquet"
    files.write_table(arrow.Table.from_pylist([SEARCH_R1]), parquet)
    assert next(read_questions(parquet)).answers == ("Ana", "Anna")
    parquet.write_bytes(parquet.read_bytes()[:-9])
    with pytest.raises(ValueError, match="cannot be read"):
        list(read_questions(parquet))


def test_questions_of_musique_full_stand_twice(tmp_path):
    bare = [{**MUSIQUE["paragraphs"][1], "is_supporting": False}]
    without = {**MUSIQUE, "answerable": False, "paragraphs": bare}
    first, second = read_questions(write(tmp_path, [MUSIQUE, without]))
    assert (first.id, first.answers, first.kind) == ("2hop__1_2", ("Ana", "Anna"), "")
    assert (second.id, second.kind, second.support) == ("2hop__1_2#unanswerable", "unanswerable", ())
    assert second.answers == ("noanswer", "no answer", "unanswerable")
    assert second.context == (("B", "Two."),)
    assert Question.from_json(second.to_json()) == second


@pytest.mark.parametrize("name", ["dev.json.gz", "dev"])
def test_gzip_is_told_by_content(tmp_path, name):
    records = [{"id": str(n), "question": f"é {n}?", "answer": ["A"]} for n in range(3)]
    lines = "\ufeff" + "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    table = "question\tanswer\né 0?\tA\né 1?\tA\né 2?\tA\n"
    for text in (lines, json.dumps(records, indent=1), json.dumps({"data": records}, indent=1), table):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        assert [one.text for one in read_questions(tmp_path / name)] == ["é 0?", "é 1?", "é 2?"]


GOOD = {"id": "g", "question": "q", "golden_answers": ["a"]}


@pytest.mark.parametrize(
    ("records", "parts"),
    [
        ([GOOD, {**GOOD, "id": "h", "golden_answers": []}], ["record 2", "`golden_answers`"]),
        ([GOOD, {**GOOD, "id": "h", "golden_answers": [3]}], ["record 2", "`golden_answers`"]),
        ([GOOD, {"id": "h", "question": "q"}], ["record 2", "golden_answers"]),
        ([SEARCH_R1, {"prompt": []}], ["record 2", "`reward_model`"]),
        ([TRIVIA, {"Question": "q"}], ["record 2", "`answer`"]),
        ([GOOD, {**GOOD, "id": "h", "question": " "}], ["record 2", "`question`"]),
        ([GOOD, GOOD], ["record 2", "'g'", "came before"]),
        ([GOOD, [1]], ["record 2", "list"]),
        ([{"foo": 1}], ["record 1", "'foo'", "hotpotqa"]),
        ([{**HOTPOT, "supporting_facts": [["A"]]}], ["record 1", "`supporting_facts`"]),
        ([{**HOTPOT, "supporting_facts": [["A", "0"]]}], ["record 1", "`supporting_facts`"]),
        ([{**HOTPOT, "context": [["A", "text"]]}], ["record 1", "`context`"]),
        ([{k: v for k, v in HOTPOT.items() if k != "answer"}], ["`answer`"]),
        ([{**MUSIQUE, "answer_aliases": "x"}], ["`answer_aliases`"]),
        ([{**MUSIQUE, "paragraphs": [{"idx": 0}]}], ["`paragraph_text`"]),
        ([{**MUSIQUE, "question_decomposition": 5}], ["record 1", "`question_decomposition`"]),
        ([{**MUSIQUE, "question_decomposition": "ab"}], ["record 1", "`question_decomposition`"]),
        ([{**MUSIQUE, "answerable": "no"}], ["record 1", "`answerable`"]),
        ([{**MUSIQUE, "paragraphs": [{"idx": [], "paragraph_text": "x", "is_supporting": True}]}], ["`paragraphs`"]),
        ([MUSIQUE, MUSIQUE], ["record 2", "came before"]),
        *[
            ([{"id": "x", "text": "q", "answers": ["a"], name: value}], [f"`{name}`"])
            for name, value in [
                ("hops", "two"),
                ("hops", 2.0),
                ("hops", True),
                ("hops", 0),
                ("support", 5),
                ("support", ["ab"]),
                ("support", [[{}]]),
                ("searches", "a"),
                ("searches", [3]),
                ("context", [["a"]]),
                ("context", [["a", 3]]),
                ("kind", 3),
            ]
        ],
        ([{**SEARCH_R1, "reward_model": {"style": "rule"}}], ["`reward_model.ground_truth.target`"]),
        ([{**SEARCH_R1, "prompt": 3}], ["`prompt`"]),
        ([{"question": "q", "possible_answers": "[broken"}], ["`possible_answers`"]),
        ([{**TRIVIA, "Answer": {"Aliases": []}}], ["`Value`"]),
        ([{"id": "x", "text": "q", "answers": ["a"], "hop": 2}], ["'hop'"]),
        ([{"id": "x", "text": "q", "answers": "a"}], ["`answers`"]),
    ],
)
def test_a_fault_is_named(tmp_path, records, parts):
    path = write(tmp_path, records)
    with pytest.raises(ValueError) as error:  # noqa: PT011 -- what it says is checked below, part by part
        list(read_questions(path))
    for part in [str(path), *parts]:
        assert part in str(error.value)
    if len(records) == 1:
        with pytest.raises(ValueError):  # noqa: PT011 -- a record alone is refused with the same words
            Question.from_json(records[0])


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"), (b" \n", "empty"), (b"hello", "no JSON"), (b"{broken", "no JSON"),
        (b'[{"question": "q", ', "cut off"), (b'[{"question": "q", "answer": "a"} {"x": 1}]', r"record 2: wanted ','"),
        (b'[{"question": "q", "answer": "a"},]', "record 2"), (b'[,{"question": "q", "answer": "a"}]', "record 1"),
        (b'[{"question": "q", "answer": "a"},,{}]', "record 2"),
        (b'[{"question": "q", "answer": "a"}] garbage', "after the list's end stands 'garbage'"),
        (b"[]" + b" " * 3_000_000 + b"x", "after the list's end"), (b'[{"question": "q", "answer": "a"}', "cut off"),
        (gzip.compress(b'{"question": "q", "answer": ["a"]}\n' * 99)[:-12], "broken or cut off"),
        (b"\x1f\x8bno gzip", "broken or cut off"),
        (b"question,answer\nq," + b"x" * ((1 << 24) + 1) + b"\n", "field larger than"),
        (b"a,b\n1,2,3\n", "line 2"), (b"\xff\xfe\x00", "UTF-8"),
        (b'{"question": "q", "answer": ["a"]}\n{x\n', "line 2"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(tmp_path, content, part):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=part) as error:
        list(read_questions(path))
    assert str(path) in str(error.value)


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="'hotpot'"):
        next(read_questions(tmp_path, "hotpot"))
    with pytest.raises(FileNotFoundError):
        next(read_questions(tmp_path / "none"))
    for options in ({"id": ""}, {"text": " "}, {"answers": ()}, {"answers": ("",)}):
        with pytest.raises(ValueError, match="Question"):
            Question(**{"id": "1", "text": "q", "answers": ("a",), **options})
    with pytest.raises(TypeError, match="answers"):
        Question("1", "q", ["a"])


def test_the_react_questions_of_the_logs_can_be_graded(shared):
    """Answers of real runs on HotpotQA, graded: the environment there said correct where exact match does."""
    from rtmc.gymenvs.qa.metrics import exact_match

    agreed, seen = 0, 0
    for line in (shared / "data" / "hotpot_react.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        calls = [call["function"] for m in record["messages"] for call in m.get("tool_calls") or []]
        answers = [json.loads(call["arguments"])["answer"] for call in calls if call["name"] == "finish"]
        if answers and record["meta"].get("answer"):
            seen += 1
            agreed += exact_match(answers[-1], record["meta"]["answer"]) == record["reward"]
    assert seen > 50
    assert agreed == seen
