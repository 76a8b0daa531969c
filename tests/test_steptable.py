"""StepTable: building, checks, order, trees, files."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rtmc
from rtmc import Ending, StepTable, TableError


def row(group="g", rollout=0, index=0, state="s", action="a", **more):
    return {"group": group, "rollout": rollout, "index": index, "state": state, "action": action, **more}


def tree_rows():
    """prompt -> a -> {l1, l2}, prompt -> b -> l3, prompt -> l4."""
    spec = [("a", 0, 0, -1), ("l1", 0, 1, 0), ("l2", 1, 1, 0), ("b", 2, 0, -1), ("l3", 2, 1, 3), ("l4", 3, 0, -1)]
    return [row(rollout=r, index=i, state=f"before {name}", action=name, parent=p) for name, r, i, p in spec]


def test_columns_of_a_small_table():
    rows = [
        row(rollout="x", index=1, state=("t", 2), action=7, outcome=1.0, tokens=5),
        row(rollout="x", index=0, state="root", action="go", reward=0.5),
        row(rollout="y", index=0, state="root", action="stay", ending="truncated", next_state="end"),
        row(group="h", rollout="x", index=0, state="root", action="go", value=0.25),
    ]
    table = StepTable.from_rows(rows, empty_rollouts=[{"group": "h", "rollout": "z", "outcome": 0}])
    assert len(table) == 4
    assert (table.n_rollouts, table.n_groups) == (4, 2)
    assert table.rollout.tolist() == [0, 0, 1, 2]
    assert table.rollout_names == ["x", "y", "x", "z"]
    assert table.group_names == ["g", "h"]
    assert table.group.tolist() == [0, 0, 1, 1]
    assert table.state_names == [("t", 2), "root", "root", "end"]
    assert table.state.tolist() == [0, 1, 1, 2]  # the root of the other group is another state
    assert table.action_names == [7, "go", "stay", "go"]
    assert table.next_state.tolist() == [-1, 0, 3, -1]
    assert table.reward.tolist() == [0.0, 0.5, 0.0, 0.0]
    assert table.tokens.tolist() == [5, 1, 1, 1]
    assert table.outcome[0] == 1.0
    assert table.outcome[3] == 0.0
    assert torch.isnan(table.outcome[1:3]).all()
    assert table.ending.tolist() == [Ending.SUCCESS, Ending.TRUNCATED, Ending.FAILURE, Ending.FAILURE]
    assert torch.isnan(table.scores["value"][:3]).all()
    assert table.scores["value"][3] == 0.25
    assert table.parent is None
    dtypes = {name: column.dtype for name, column in table.columns().items()}
    assert dtypes.pop("ending") == torch.int8
    floats = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert floats == {"reward", "outcome", "value"}
    assert all(dtypes[name] == torch.int64 for name in dtypes.keys() - floats)


def test_outcomes_default_to_zero_only_if_nobody_has_one():
    assert StepTable.from_rows([row(), row(rollout=1)]).outcome.tolist() == [0.0, 0.0]
    some = StepTable.from_rows([row(), row(rollout=1, outcome=0.0)])
    assert math.isnan(some.outcome[0])
    assert some.ending.tolist() == [Ending.FAILURE, Ending.FAILURE]


def test_float64_keeps_every_digit():
    table = StepTable.from_rows([row(reward=0.1, outcome=1 / 3)], dtype=torch.float64)
    assert table.reward[0].item() == 0.1
    assert table.outcome[0].item() == 1 / 3
    assert table.dtype == torch.float64


def test_empty_table():
    table = StepTable.from_rows([])
    assert (len(table), table.n_rollouts, table.n_groups) == (0, 0, 0)
    ordered, rows = table.time_order()
    assert len(ordered) == 0
    assert rows.shape == (0,)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"group": 0, "rollout": 0, "index": 0, "state": 0}], "row 0 has no `action`"),
        ([row(), row(index=1, state=["a"])], r"row 1, column `state`.*list.*tuple"),
        ([row(next_state=None), row(index=1, next_state=["a"])], r"row 1, column `next_state`"),
        ([row(), row(index=1, state=torch.tensor(3))], r"row 1, column `state`.*never match"),
        ([row(action=("a", math.nan))], r"row 0, column `action`.*never match"),
        ([row(index=1)], r"row 0, column `index`: got 1; rollout 0 has 1 steps.*0\.\.0"),
        ([row(), row(index=2)], r"row 1, column `index`: got 2"),
        ([row(), row()], r"row 0, column `index`: got 0, which another row of rollout 0 has too"),
        ([row(index=-1)], r"column `index`: got -1"),
        ([row(index=0.0)], r"row 0, column `index`: got 0\.0; it must be an integer"),
        ([row(index=True)], r"row 0, column `index`: got True"),
        ([row(tokens=-2)], r"row 0, column `tokens`: got -2"),
        ([row(reward=math.inf)], r"row 0, column `reward`: got inf"),
        ([row(reward=math.nan)], r"row 0, column `reward`: got nan"),
        ([row(reward="1")], r"row 0, column `reward`: got '1'; it must be a number"),
        ([row(outcome=math.inf)], r"rollout 0, column `outcome`: got inf"),
        ([row(outcome="yes")], r"row 0, column `outcome`: got 'yes'"),
        ([row(outcome=1), row(index=1, outcome=0)], r"row 1, column `outcome`: got 0, but row 0"),
        ([row(ending="success"), row(index=1, ending="failure")], r"row 1, column `ending`"),
        ([row(ending="won")], r"row 0, column `ending`: got 'won'.*'success'"),
        ([row(note="text")], r"row 0, column `note`: got 'text'.*score"),
        ([row(), row(index=1, parent=7)], r"row 1, column `parent`: got 7"),
        ([row(parent=-1), row(index=1, parent=-1)], r"row 1, column `index`: got 1.*depth is 0"),
        ([row(parent=-1), row(group="h", rollout=1, index=1, parent=0)], r"row 1, column `parent`.*same group"),
        ([row(parent=-1), row(rollout=1, index=1)], r"row 1 has no `parent`"),
        (
            [
                row(parent=-1),
                row(index=1, parent=0),
                row(rollout=1, index=0, parent=-1),
                row(rollout=0, index=1, parent=2),
            ],
            r"row 3, column `parent`: got 2; the rows of rollout 0",
        ),
    ],
)
def test_bad_rows_are_named(rows, message):
    with pytest.raises(TableError, match=message) as caught:
        StepTable.from_rows(rows)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("empty", "message"),
    [
        ([{"group": "g", "rollout": 0}], "has steps among the rows"),
        ([{"group": "g", "rollout": 1}] * 2, "empty rollout 1.*listed twice"),
        ([{"group": "g"}], "empty rollout 0 has no `rollout`"),
        ([{"group": "g", "rollout": 1, "index": 0}], "it may only have group"),
    ],
)
def test_bad_empty_rollouts_are_named(empty, message):
    with pytest.raises(TableError, match=message):
        StepTable.from_rows([row()], empty_rollouts=empty)


@pytest.mark.parametrize("rows", [row(), 5, [1]])
def test_rows_of_a_wrong_type(rows):
    with pytest.raises(TypeError):
        StepTable.from_rows(rows)


def test_dtype_must_be_a_float_of_one_of_two_kinds():
    with pytest.raises(TypeError, match="float16"):
        StepTable.from_rows([row()], dtype=torch.float16)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("state", torch.tensor([0, 0, 0, -1]), r"row 3, column `state`: got -1"),
        ("state", torch.tensor([0, 0, 0, 9]), r"row 3, column `state`: got 9; `state_names` has 2"),
        ("state", torch.tensor([0.0, 0, 0, 0]), r"column `state`: got torch.float32"),
        ("state", torch.zeros(3, dtype=torch.int64), r"column `state`: got shape \(3,\)"),
        ("state", torch.tensor([0, 0, 0, 0]), r"column `state`: got 0, an id that another group uses"),
        ("next_state", torch.tensor([-1, -2, -1, -1]), r"row 1, column `next_state`: got -2"),
        ("rollout", torch.tensor([0, 0, 1, 5]), r"row 3, column `rollout`: got 5.*0\.\.2"),
        ("group", torch.tensor([0, 0, 2]), r"rollout 2, column `group`: got 2"),
        ("ending", torch.tensor([0, 3, 0], dtype=torch.int8), r"rollout 1, column `ending`: got 3"),
        ("outcome", torch.zeros(3, dtype=torch.float64), r"column `outcome`: got torch.float64"),
        ("reward", torch.zeros(4, dtype=torch.float16), r"column `reward`: got torch.float16"),
        ("scores", {"value": torch.zeros(4, dtype=torch.int64)}, r"score `value`: got torch.int64"),
        ("scores", {"value": torch.zeros(3)}, r"score `value`: got \(3,\)"),
        ("scores", {"reward": torch.zeros(4)}, r"score `reward` has the name of a column"),
        ("rollout_names", ["a"], r"`rollout_names` has 1 entries for 3 rollouts"),
    ],
)
def test_validate_names_the_place(column, value, message):
    rows = [row(), row(index=1), row(rollout=1), row(group="h", rollout=2)]
    table = StepTable.from_rows(rows)
    setattr(table, column, value)
    with pytest.raises(TableError, match=message):
        table.validate()


def test_sparse_ids_are_checked_by_group_too():
    table = StepTable.from_rows([row(), row(group="h", rollout=1)])
    table.state_names = table.action_names = None
    table.state = torch.tensor([2**60, 2**60 + 1])
    table.validate()
    table.state = torch.tensor([2**60, 2**60])
    with pytest.raises(TableError, match="another group"):
        table.validate()


def test_a_write_into_a_column_is_seen():
    table = StepTable.from_rows([row(), row(index=1)]).validate()
    table.index[1] = 0
    with pytest.raises(TableError, match="`index`"):
        table.validate()


def test_time_order_follows_a_write():
    table = StepTable.from_rows([row(index=1, reward=1.0), row(index=0, reward=2.0)])
    assert table.time_order()[1].tolist() == [1, 0]
    table.index.copy_(torch.tensor([0, 1]))
    assert table.time_order()[1].tolist() == [0, 1]


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6), seed=st.integers(0, 2**16))
def test_time_order_of_shuffled_rows(lengths, seed):
    rows = [row(rollout=r, index=t, reward=10 * r + t) for r, n in enumerate(lengths) for t in range(n)]
    random.Random(seed).shuffle(rows)
    table = StepTable.from_rows(rows)
    ordered, place = table.time_order()
    assert ordered.reward.dtype == torch.float64
    assert torch.equal(ordered.reward.float(), table.reward[place])
    for r in range(table.n_rollouts):
        begin, end = ordered.offsets()[r : r + 2].tolist()
        name = table.rollout_names[r]
        assert ordered.reward[begin:end].tolist() == [10 * name + t for t in range(lengths[name])]


@pytest.mark.parametrize("indices", [(0, 1, 2), (2, 0, 1)])
def test_columns_in_time_order_are_those_that_were_checked(indices):
    """They are brought into order when they are read; a write to the table in between does not show."""
    table = StepTable.from_rows([row(index=i, reward=float(i), tokens=i) for i in indices])
    ordered, _ = table.time_order()
    table.reward.add_(7)
    table.tokens.add_(7)
    assert ordered.reward.tolist() == [0.0, 1.0, 2.0]
    assert ordered.tokens.tolist() == [0, 1, 2]
    changed = dataclasses.replace(ordered, tokens=ordered.tokens * 2)
    assert changed.tokens.tolist() == [0, 2, 4]
    assert changed.reward.tolist() == [0.0, 1.0, 2.0]
    assert changed.offsets().tolist() == [0, 3]
    assert table.time_order()[0].reward.tolist() == [7.0, 8.0, 9.0]
    with pytest.raises(AttributeError, match="no attribute 'rewards'"):
        _ = ordered.rewards


def test_default_next_state_is_the_following_state_whatever_the_row_order():
    rows = [row(index=t, state=f"s{t}") for t in range(4)]
    table = StepTable.from_rows(rows[::-1])
    names = [None if n < 0 else table.state_names[n] for n in table.next_state.tolist()]
    assert names == [None, "s3", "s2", "s1"]


def test_tree_rows_become_paths():
    table = StepTable.from_rows(tree_rows())
    assert len(table) == 6
    ordered, place = table.time_order()
    assert place.tolist() == [0, 1, 0, 2, 3, 4, 5]
    assert ordered.rollout.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert ordered.index.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert ordered.parent is None


def test_tree_rows_in_another_order_give_the_same_paths():
    rows, order = tree_rows(), [5, 2, 0, 4, 1, 3]
    place = {old: new for new, old in enumerate(order)}
    shuffled = [{**rows[old], "parent": place.get(rows[old]["parent"], -1)} for old in order]
    table = StepTable.from_rows(shuffled)
    ordered, at = table.time_order()
    paths: dict[int, list[str]] = {}
    for rollout, step in zip(ordered.rollout.tolist(), at.tolist(), strict=True):
        paths.setdefault(table.rollout_names[rollout], []).append(table.action_names[table.action[step]])
    assert paths == {0: ["a", "l1"], 1: ["a", "l2"], 2: ["b", "l3"], 3: ["l4"]}


def test_tree_next_state_prefers_the_own_chain():
    table = StepTable.from_rows(tree_rows())
    assert table.state_names[table.next_state[0]] == "before l1"
    assert table.next_state.tolist()[1] == -1


def test_to_moves_every_column():
    table = StepTable.from_rows(
        [row(value=1.0, parent=-1)],
    )
    moved = table.to("meta")
    assert {column.device.type for column in moved.columns().values()} == {"meta"}
    assert {column.device.type for column in table.columns().values()} == {"cpu"}


@pytest.mark.gpu
def test_a_table_on_cuda_gives_the_same_credit():
    import rtmc

    rows = [row(rollout=r, index=t, state=t, action=r % 2, outcome=r % 3) for r in range(6) for t in range(4)]
    table = StepTable.from_rows(rows, dtype=torch.float64)
    for method in ("grpo", "rtmc", "grpo_step"):
        expected = rtmc.advantages(table, method)
        torch.testing.assert_close(rtmc.advantages(table.to("cuda"), method).cpu(), expected, rtol=0, atol=1e-12)


def _assert_equal_tables(one: StepTable, two: StepTable) -> None:
    assert one.columns().keys() == two.columns().keys()
    for name, column in one.columns().items():
        other = two.columns()[name]
        assert column.dtype == other.dtype, name
        assert torch.equal(column.nan_to_num(-9.5), other.nan_to_num(-9.5)), name
    for kind in ("state", "action", "group", "rollout"):
        names, others = getattr(one, f"{kind}_names"), getattr(two, f"{kind}_names")
        assert names == others
        assert names is None or [type(n) for n in names] == [type(n) for n in others]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parquet_round_trip(tmp_path, dtype):
    pytest.importorskip("pyarrow")
    rows = [
        row(group=("t", 1), rollout=0, state=(1, "x", None), action=b"\x00\xff", reward=0.1, outcome=1 / 3, value=0.2),
        row(group=("t", 1), rollout=0, index=1, state="naïve \U0001f600", action=1.5, reward=-0.3, action_score=2),
        row(group="1", rollout=1, state=1, action=True, ending="truncated"),
    ]
    table = StepTable.from_rows(rows, [{"group": 1, "rollout": "none", "outcome": math.nan}], dtype=dtype)
    table.save(tmp_path / "deep" / "table.parquet")
    _assert_equal_tables(table, StepTable.load(tmp_path / "deep" / "table.parquet"))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["table.parquet"]


def test_parquet_of_trees_of_bare_ids_and_of_nothing(tmp_path):
    pytest.importorskip("pyarrow")
    tree = StepTable.from_rows(tree_rows())
    tree.state_names = None
    for table in (tree, StepTable.from_rows([])):
        table.save(tmp_path / "table.parquet")
        _assert_equal_tables(table, StepTable.load(tmp_path / "table.parquet"))


def test_a_key_that_cannot_be_saved_leaves_no_file(tmp_path):
    pytest.importorskip("pyarrow")
    table = StepTable.from_rows([row(state=frozenset({1}))])
    with pytest.raises(TableError, match=r"state key cannot be saved.*frozenset"):
        table.save(tmp_path / "table.parquet")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_table(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "table.parquet"
    path.write_text("group,rollout\n")
    with pytest.raises(TableError, match=r"table\.parquet: not a parquet file"):
        StepTable.load(path)
    parquet.write_table(pyarrow.table({"x": [1]}), path)
    with pytest.raises(TableError, match="not a step table"):
        StepTable.load(path)
    with pytest.raises(FileNotFoundError):
        StepTable.load(tmp_path / "absent.parquet")


@pytest.mark.parametrize("rows", [tree_rows(), [row(outcome=1.0, value=0.5), row(rollout=1, next_state="end")]])
def test_pandas_frame_reads_back(rows):
    pytest.importorskip("pandas")
    table = StepTable.from_rows(rows)
    frame = table.to_pandas()
    assert len(frame) == len(table)
    _assert_equal_tables(table, StepTable.from_rows(frame.to_dict("records")))


def test_summary_counts_the_special_members():
    rows = [
        row(outcome=1.0, rollout=0),
        row(outcome=1.0, rollout=1, ending="truncated"),
        row(outcome=math.nan, rollout=2),
        row(group="h", rollout=3, outcome=0.0),
        row(group="i", rollout=4, outcome=0.0),
        row(group="i", rollout=5, outcome=1.0),
    ]
    table = StepTable.from_rows(rows, empty_rollouts=[{"group": "i", "rollout": 6, "outcome": 0.5}])
    assert table.summary() == {
        "steps": 6,
        "rollouts": 7,
        "groups": 3,
        "unknown": 1,
        "truncated": 1,
        "empty": 1,
        "uniform": 2,
        "single": 1,
    }


def test_writes_that_torch_does_not_count_are_seen() -> None:
    outcome = np.array([1.0, 0.0], dtype=np.float32)
    rows = [{"group": 0, "rollout": r, "index": 0, "state": "s", "action": r} for r in range(2)]
    table = StepTable.from_rows(rows)
    table.outcome = torch.from_numpy(outcome)
    first = rtmc.advantages(table, "grpo")
    outcome[:] = [0.0, 1.0]
    assert torch.equal(rtmc.advantages(table, "grpo"), -first)
    table.outcome.data[:] = torch.tensor([1.0, 0.0])
    assert torch.equal(rtmc.advantages(table, "grpo"), first)
    table.index.numpy()[0] = 7
    with pytest.raises(TableError, match="index"):
        rtmc.advantages(table, "grpo")


@pytest.mark.parametrize("column", ["rollout", "reward", "outcome"])
@pytest.mark.parametrize("value", [[0, 1], None])
def test_a_column_that_is_no_tensor_is_named(column: str, value: object) -> None:
    rows = [{"group": 0, "rollout": r, "index": 0, "state": "s", "action": r} for r in range(2)]
    table = StepTable.from_rows(rows)
    setattr(table, column, value)
    with pytest.raises(TableError, match=f"column `{column}`.*must be a tensor"):
        table.validate()


@pytest.mark.parametrize(
    ("column", "value"), [("index", 2**63), ("tokens", 2**70), ("reward", 10**400), ("outcome", 10**400)]
)
def test_numbers_too_large_name_row_and_column(column: str, value: int) -> None:
    row = {"group": 0, "rollout": 0, "index": 0, "state": "s", "action": "a", column: value}
    with pytest.raises(TableError, match=f"row 0, column `{column}`"):
        StepTable.from_rows([row])
