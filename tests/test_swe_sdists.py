"""Source archives: found, checked, unpacked safely; and a fix told by where it stands in the next release."""

import gzip
import hashlib
import io
import sys
import tarfile
import threading
import zipfile

import pytest

from rtmc.gymenvs.swe import sdists
from rtmc.gymenvs.swe.hunks import gold_patch, list_hunks, main
from rtmc.gymenvs.swe.repository import PreparationError, prepare
from rtmc.gymenvs.swe.sdists import fetch, unpack
from rtmc.gymenvs.swe.task import Sdist, SdistFix, SWETask

OLD = "".join(f"line {k}\n" for k in range(40))
NEW = OLD.replace("line 3\n", "line three\n").replace("line 20\n", "line twenty\n").replace("line 38\n", "")


def archive(folder, name, files, links=()):
    """An sdist of these files; returns its SHA-256."""
    folder.mkdir(exist_ok=True)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
        for path, kind, target in links:
            info = tarfile.TarInfo(path)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    (folder / name).write_bytes(gzip.compress(data.getvalue(), mtime=0))
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


@pytest.fixture
def no_network(monkeypatch):
    """No registry: pip has no index, and proxies that lead nowhere would not help it."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_an_archive_is_found_by_the_registry_s_rules_for_names(tmp_path):
    found = archive(tmp_path / "here", "My_Pack.age-1.0.tar.gz", {"My_Pack.age-1.0/a.py": "x"})
    archive(tmp_path / "here", "My_Pack.age-1.0.1.tar.gz", {"My_Pack.age-1.0.1/a.py": "y"})
    for name in ("my-pack-age", "My_Pack.age", "my.pack_age"):
        assert fetch(Sdist(name, "1.0"), tmp_path / "cache", tmp_path / "here")[1] == found
    assert not (tmp_path / "cache").exists()  # nothing was fetched


def test_another_archive_than_the_task_s_is_refused(tmp_path):
    archive(tmp_path / "here", "pack-1.0.tar.gz", {"pack-1.0/a.py": "x"})
    with pytest.raises(
        PreparationError, match=r"pack 1.0: the archive '.*pack-1.0.tar.gz' has the SHA-256 .* wanted 0{64}"
    ):
        fetch(Sdist("pack", "1.0", "0" * 64), tmp_path / "cache", tmp_path / "here")


@pytest.mark.usefixtures("no_network")
def test_without_a_registry_it_is_said(tmp_path):
    with pytest.raises(PreparationError) as caught:
        fetch(Sdist("pack", "1.0"), tmp_path / "cache", tmp_path / "here")
    for part in (
        "pack 1.0: ",
        "`pip download` cannot fetch it: ERROR: ",
        f"put the archive pack-1.0.tar.gz into {tmp_path / 'here'}",
    ):
        assert part in str(caught.value)
    assert [one.suffix for one in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_download_that_hangs_is_stopped(tmp_path, monkeypatch):
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sdists, "LIMIT_S", 0.3)
    with pytest.raises(PreparationError, match=r"pack 1.0: fetching it took longer than 0.3 s; put the archive"):
        fetch(Sdist("pack", "1.0"), tmp_path / "cache")


def test_one_archive_is_fetched_once(tmp_path, monkeypatch):
    fetched = []

    def download(release, cache, what, folder):
        fetched.append(what)
        archive(cache, "pack-1.0.tar.gz", {"pack-1.0/a.py": "x"})
        return cache / "pack-1.0.tar.gz"

    monkeypatch.setattr(sdists, "_download", download)
    threads = [threading.Thread(target=fetch, args=(Sdist("pack", "1.0"), tmp_path)) for _ in range(5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert fetched == ["pack 1.0"]


def test_files_and_links_come_out(tmp_path):
    links = [("p-1/b.py", tarfile.SYMTYPE, "a.py"), ("p-1/c.py", tarfile.LNKTYPE, "p-1/a.py")]
    archive(tmp_path, "p-1.tar.gz", {"p-1/a.py": "x\r\n", "p-1/sub/d.py": "y"}, links)
    unpack(tmp_path / "p-1.tar.gz", tmp_path / "out", "here")
    assert (tmp_path / "out/a.py").read_bytes() == b"x\r\n"
    assert (tmp_path / "out/sub/d.py").read_text() == "y"
    assert (tmp_path / "out/b.py").is_symlink()
    assert (tmp_path / "out/c.py").read_bytes() == b"x\r\n"


@pytest.mark.parametrize(
    ("files", "links", "said"),
    [
        ({"../evil.py": "x"}, (), "outside the destination"),
        ({"p-1/../../evil.py": "x"}, (), "outside the destination"),
        ({"p-1/a": "x"}, [("p-1/out", tarfile.SYMTYPE, "../../..")], "outside the destination"),
        ({"p-1/a": "x"}, [("p-1/out", tarfile.SYMTYPE, "/etc/passwd")], "is a link to an absolute path"),
        ({"p-1/a": "x"}, [("p-1/out", tarfile.LNKTYPE, "../evil.py")], "outside the destination"),
        ({"p-1/a": "x"}, [("p-1/pipe", tarfile.FIFOTYPE, "")], "is a special file"),
        ({"p-1/a": "x", "q-1/a": "x"}, (), "does not hold one folder"),
        ({"a": "x"}, (), "does not hold one folder"),
        ({}, (), "does not hold one folder"),
    ],
)
def test_an_archive_that_reaches_out_is_refused(tmp_path, files, links, said):
    (tmp_path / "evil.py").write_text("mine")
    (tmp_path / "in").mkdir()
    archive(tmp_path / "in", "p-1.tar.gz", files, links)
    with pytest.raises(PreparationError, match=f"here: the archive p-1.tar.gz .*{said}"):
        unpack(tmp_path / "in/p-1.tar.gz", tmp_path / "in/out", "here")
    assert (tmp_path / "evil.py").read_text() == "mine"
    assert {one.name for one in tmp_path.rglob("*")} == {"evil.py", "in", "p-1.tar.gz"}


def test_broken_and_huge_archives_are_refused(tmp_path, monkeypatch):
    archive(tmp_path, "p-1.tar.gz", {"p-1/a": "x" * 5000})
    data = (tmp_path / "p-1.tar.gz").read_bytes()
    for broken in (data[:30], data[: len(data) // 2], b"", b"no archive", data[:40] + b"\0\0\0" + data[43:]):
        (tmp_path / "q-1.tar.gz").write_bytes(broken)
        with pytest.raises(PreparationError, match=r"here: the archive q-1.tar.gz cannot be unpacked"):
            unpack(tmp_path / "q-1.tar.gz", tmp_path / "out", "here")
    monkeypatch.setattr(sdists, "MAX_BYTES", 4999)
    with pytest.raises(PreparationError, match="unpacks to more than 4999 bytes"):
        unpack(tmp_path / "p-1.tar.gz", tmp_path / "out", "here")


def test_zip_archives_too(tmp_path):
    for name, path in (("good-1.zip", "p-1/a.py"), ("bad-1.zip", "p-1/../../a.py")):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr(path, "x")
    unpack(tmp_path / "good-1.zip", tmp_path / "out", "here")
    assert (tmp_path / "out/a.py").read_text() == "x"
    with pytest.raises(PreparationError, match=r"the entry 'p-1/../../a.py' would lie outside"):
        unpack(tmp_path / "bad-1.zip", tmp_path / "other", "here")


def two_releases(folder, **fix):
    old = archive(folder, "pack-1.0.tar.gz", {"pack-1.0/pack.py": OLD, "pack-1.0/test_pack.py": "old tests\n"})
    new = archive(folder, "pack-2.0.tar.gz", {"pack-2.0/pack.py": NEW, "pack-2.0/test_pack.py": "new tests\n"})
    fix = {"hunks": {"pack.py": (2,)}, "test_files": ("test_pack.py",), **fix}
    return SWETask(
        "pack",
        "It is wrong.",
        Sdist("pack", "1.0", old),
        ("test_pack.py::test",),
        fix=SdistFix("pack", "2.0", new, **fix),
    )


def test_a_fix_is_some_of_the_difference_of_two_releases(tmp_path):
    task = two_releases(tmp_path / "here")
    prepared = prepare(task, tmp_path / "cache", sdist_folder=tmp_path / "here")
    assert (prepared.base / "pack.py").read_text() == OLD
    assert (prepared.base / "test_pack.py").read_text() == "old tests\n"
    assert prepared.task.test_files == {"test_pack.py": "new tests\n"}
    changed = [line for line in prepared.task.patch.splitlines() if line[0] in "+-"]
    assert changed == ["--- a/pack.py", "+++ b/pack.py", "-line 20", "+line twenty"]
    assert prepared.task.meta["sdist_sha256"] == task.source.sha256
    wanted = hashlib.sha256(prepared.task.patch.encode()).hexdigest()
    assert prepare(
        two_releases(tmp_path / "here", patch_sha256=wanted), tmp_path / "cache", sdist_folder=tmp_path / "here"
    )


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        ({"patch_sha256": "0" * 64}, "the gold patch has the SHA-256 .* wanted 0{64}"),
        ({"hunks": {"pack.py": (4,)}}, "'pack.py' in pack 2.0: hunk 4 is wanted, the patch has 3"),
        ({"hunks": {"nowhere.py": ()}}, "'nowhere.py' is the same in pack 2.0"),
        ({"test_files": ("nowhere.py",)}, "pack 2.0 has no file 'nowhere.py'"),
    ],
)
def test_a_fix_that_is_not_there_is_said(tmp_path, fix, said):
    with pytest.raises(PreparationError, match=f"task 'pack': {said}"):
        prepare(two_releases(tmp_path / "here", **fix), tmp_path / "cache", sdist_folder=tmp_path / "here")


def test_a_fix_may_bring_files_and_take_them_away(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/gone.py").write_text("x\n")
    (tmp_path / "b/new.py").write_text("y\n")
    (tmp_path / "b/gone.bin").write_bytes(b"\xff")
    patch = gold_patch(SdistFix("p", "2", "", {"gone.py": (), "new.py": ()}), tmp_path / "a", tmp_path / "b", "here")
    assert "deleted file mode" in patch
    assert "new file mode" in patch
    with pytest.raises(PreparationError, match=r"here: 'gone.bin' is no UTF-8 text"):
        gold_patch(SdistFix("p", "2", "", {"gone.bin": ()}), tmp_path / "a", tmp_path / "b", "here")


def test_hunks_are_listed_with_their_numbers(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RTMC_CACHE", str(tmp_path / "cache"))
    task = two_releases(tmp_path / "here")
    assert main(["pack", "1.0", "2.0", "--sdists", str(tmp_path / "here")]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("pack.py: 3 hunks\nhunk 1 of pack.py\n@@ ")
    second = listed.split("hunk 2 of pack.py\n")[1].split("hunk 3 of")[0]
    gold = prepare(task, tmp_path / "cache", sdist_folder=tmp_path / "here").task.patch  # the task's fix is hunk 2
    assert second.splitlines()[1:] == gold.split("@@\n")[1].splitlines()
    (tmp_path / "here/pack-9.0.tar.gz").write_bytes(b"no archive")
    assert main(["pack", "1.0", "9.0", "--sdists", str(tmp_path / "here")]) == 2
    assert "pack 9.0: the archive pack-9.0.tar.gz cannot be unpacked" in capsys.readouterr().err


def test_a_fix_over_other_line_ends_says_so(tmp_path):
    for name, end in (("a", "\r\n"), ("b", "\n")):
        (tmp_path / name).mkdir()
        lines = [f"line {number}" for number in range(40)]
        if name == "b":
            lines[3], lines[33] = "new", "also new"
        (tmp_path / name / "m.py").write_bytes("".join(line + end for line in lines).encode())
    assert len(list_hunks(tmp_path / "a", tmp_path / "b", "m.py")) == 1
    with pytest.raises(
        PreparationError, match=r"hunk 2 is wanted, the patch has 1: its lines end with .r.n before and .n"
    ):
        gold_patch(SdistFix("p", "2", "", {"m.py": (2,)}), tmp_path / "a", tmp_path / "b", "here")
