"""Where repositories are looked for: by a task's id, by `owner/name`, by SWE-smith's names for its mirrors."""

import pytest

from rtmc.gymenvs.swe.repos import Repos, is_repository
from rtmc.gymenvs.swe.task import Clone, Folder

MIRROR = "swesmith/own__er.0123abcd"


def make(path, kind):
    """Something that looks like a clone, a bare clone, a bundle or a plain folder."""
    if kind == "bundle":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"# v2 git bundle\n")
        return path
    path.mkdir(parents=True)
    if kind == "clone":
        (path / ".git").mkdir()
    elif kind == "bare":
        (path / "HEAD").write_text("ref: refs/heads/main\n")
        (path / "objects").mkdir()
    return path


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("own__er", "clone"),
        ("own/er", "clone"),
        ("er", "clone"),
        ("er", "bare"),
        ("er.git", "bare"),
        ("own__er.git", "bare"),
        ("own__er.bundle", "bundle"),
        ("er.bundle", "bundle"),
        ("own__er-7", "clone"),
    ],
)
def test_a_folder_of_clones(tmp_path, place, kind):
    path = make(tmp_path / place, kind)
    assert is_repository(path)
    assert Repos(tmp_path).find("own__er-7", "own/er", "abc") == Clone(str(path), "abc")
    assert Repos({place.removesuffix(".git").removesuffix(".bundle"): path}).find("own__er-7", "own/er", "abc")
    assert Repos(tmp_path).find("other-7", "some/thing", "abc") is None


def test_the_task_s_own_comes_first(tmp_path):
    folder, clone = make(tmp_path / "own__er-7", "plain"), make(tmp_path / "own__er", "clone")
    assert Repos(tmp_path).find("own__er-7", "own/er", "abc") == Folder(str(folder))
    assert Repos(tmp_path).find("own__er-8", "own/er", "abc") == Clone(str(clone), "abc")


def test_a_mirror_s_first_branch_or_the_upstream_commit(tmp_path):
    upstream = make(tmp_path / "er", "clone")
    assert Repos(tmp_path).find("own__er.0123abcd.op__1", MIRROR, "0123abcd") == Clone(str(upstream), "0123abcd")
    mirror = make(tmp_path / "own__er.0123abcd", "clone")
    for repos in (Repos(tmp_path), Repos({MIRROR: mirror})):
        assert repos.find("own__er.0123abcd.op__1", MIRROR, "0123abcd") == Clone(str(mirror), "HEAD")


def test_sources_may_be_given(tmp_path):
    assert Repos({"a/b": Clone("x", "HEAD", "py")}).find("t", "a/b", "abc") == Clone("x", "abc", "py")
    assert Repos({"a/b": Clone("x", "v1")}).find("t", "a/b", "abc") == Clone("x", "v1")
    assert Repos({"t": Folder("x", "py")}).find("t", "a/b", "abc") == Folder("x", "py")


def test_names_that_lead_out_are_not_looked_for(tmp_path):
    make(tmp_path / "secret", "clone")
    (tmp_path / "clones").mkdir()
    for name in ("../secret", "a/../../secret", ".", ""):
        assert Repos(tmp_path / "clones").find(name, name, "abc") is None


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(TypeError, match="repos: wanted a folder or a mapping of names to paths, got int"):
        Repos(3)
    with pytest.raises(TypeError, match=r"repos: wanted names and paths .* got 'a': int"):
        Repos({"a": 1})
    with pytest.raises(ValueError, match=r"repos: 'er' has a clone at '.*er', but the task names no commit of it"):
        Repos({"er": make(tmp_path / "er", "clone")}).find("t", "own/er", "")


def test_an_id_that_no_file_can_have_is_not_found(tmp_path):
    clone = make(tmp_path / "er", "clone")
    assert Repos(tmp_path).find("x" * 3_000, "own/er", "abc") == Clone(str(clone), "abc")
    assert Repos(tmp_path).find("x" * 3_000, "y" * 3_000, "abc") is None
