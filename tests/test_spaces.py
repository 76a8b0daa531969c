"""The text space: any characters, and what gymnasium asks of a space."""

import pickle

import pytest
from gymnasium.vector.utils import batch_space

from rtmc.gymenvs.spaces import UnicodeText


def test_contains_is_about_type_and_length_only():
    space = UnicodeText(5)
    for text in ("", "a", "é\n\t", "日本語テキ", "x" * 5):
        assert text in space
    for other in ("x" * 6, b"abc", None, 3, ["a"]):
        assert other not in space


def test_samples_lie_in_the_space_and_follow_the_seed():
    space = UnicodeText(7, seed=1)
    drawn = [space.sample() for _ in range(200)]
    assert all(text in space for text in drawn)
    assert len(set(drawn)) > 100
    space.seed(1)
    assert [space.sample() for _ in range(200)] == drawn


def test_equality_json_pickle():
    space = UnicodeText(9)
    assert space == UnicodeText(9)
    assert space != UnicodeText(8)
    assert hash(space) == hash(UnicodeText(9))
    assert pickle.loads(pickle.dumps(space)) == space
    assert space.from_jsonable(space.to_jsonable(["é", ""])) == ["é", ""]
    assert not space.is_np_flattenable
    assert "9" in repr(space)


def test_a_batch_is_a_tuple_of_texts():
    batch = batch_space(UnicodeText(4), 3)
    assert ("a", "é", "") in batch
    assert ("a", "é", "five5") not in batch


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        UnicodeText(0)
    with pytest.raises(ValueError, match="no mask"):
        UnicodeText(3).sample(mask=1)
    with pytest.raises(ValueError, match="no probability"):
        UnicodeText(3).sample(probability=1)
