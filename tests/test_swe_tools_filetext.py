"""Edits change the bytes that they name and no others, whatever the file is made of."""

import os
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtmc.gymenvs.swe.tools.filetext import FileText, lines_of, unexpanded_span
from tests.swe_toolbox import tools

EDITORS = ("file_editor", "str_replace_editor")
PIECES = st.lists(
    st.sampled_from([b"\r\n", b"\n", b"\r", b"\xff", b"\xc3", b"\xa9", b"\xe2\x82\xac", b"\t", b" ", b"ab", b"x"]),
    max_size=30,
)


@settings(deadline=None)
@given(PIECES, st.booleans(), st.text("ab\n\té", max_size=6), st.data())
@example([b"a\r\n", b"\xff\r\n"], True, "x\ny", None)
def test_a_replacement_leaves_the_other_bytes(pieces, bom, new, data):
    content = (b"\xef\xbb\xbf" if bom else b"") + b"".join(pieces)
    file = FileText(content)
    assert file.with_replaced(0, 0, "") == content
    start = data.draw(st.integers(0, len(file.text))) if data else 1
    end = data.draw(st.integers(start, len(file.text))) if data else 2
    changed = file.with_replaced(start, end, new)
    # Cut out by an encoder of its own: each character of the text is these bytes of the file.
    body = content[3:] if bom and content.startswith(b"\xef\xbb\xbf") else content
    characters = [
        c.encode("utf-8", "surrogateescape")
        for c in re.findall("\r\n|.", body.decode("utf-8", "surrogateescape"), re.DOTALL)
    ]
    assert len(characters) == len(file.text)
    crlf = characters.count(b"\r\n")
    newline = b"\r\n" if crlf > characters.count(b"\n") else b"\n"
    middle = new.encode().replace(b"\n", newline)
    assert changed == content[: len(content) - len(body)] + b"".join(characters[:start]) + middle + b"".join(
        characters[end:]
    )


@settings(deadline=None)
@given(st.text("\t\n\r ab", max_size=30), st.data())
def test_spans_of_an_expanded_text(text, data):
    expanded = text.expandtabs()
    start = data.draw(st.integers(0, len(expanded)))
    end = data.draw(st.integers(start, len(expanded)))
    first, last, before, after = unexpanded_span(text, expanded, start, end)
    # What is kept around the span, and the span itself, make up the expanded text again.
    assert (text[:first] + before).expandtabs() == expanded[:start]
    assert text[:first].expandtabs() + text[first:last].expandtabs()[:0] == expanded[: start - len(before)]
    assert len((text[:last]).expandtabs()) == end + len(after)
    assert set(before + after) <= {" "}


@pytest.mark.parametrize("text", ["", "a", "a\n", "\n", "a\n\nb\x0cc\x85d\u2028e\r\n"])
def test_lines_are_those_of_cat(text):
    assert "\n".join(lines_of(text)) + ("\n" if text.endswith("\n") else "") == text
    assert len(lines_of(text)) == text.count("\n") + (not text.endswith("\n") and text != "")


CONTENTS = {
    "crlf": b"one\r\ntwo\r\nthree\r\n",
    "bom": b"\xef\xbb\xbfone\ntwo\nthree\n",
    "bom and crlf": b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n",
    "invalid": b"one\xff\xfe\ntwo\nthr\xc3ee\n",
    "latin-1": "# -*- coding: latin-1 -*-\ns = 'é'\ntwo\n".encode("latin-1"),
    "mixed": b"one\r\ntwo\nthree\r\nfour\r\n",
    "no end": b"one\r\ntwo",
    "form feed": b"one\n\x0c\ntwo\n",
    "surrogate": b"one\xed\xa0\x80\ntwo\n",
}


@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("kind", CONTENTS)
def test_the_editors_keep_the_rest(tmp_path, editor, kind):
    content = CONTENTS[kind]
    newline = b"\r\n" if b"\r\n" in content else b"\n"
    with tools(tmp_path, {"a.py": content}, editor=editor) as bench:
        said = bench.edit("str_replace", "/testbed/a.py", old_str="two", new_str="2\nII")
        assert "has been edited" in said
        assert "\r" not in said
        said.encode()  # no surrogates in an observation
        assert bench.holds("a.py") == content.replace(b"two", b"2" + newline + b"II")
        bench.edit("undo_edit", "/testbed/a.py")
        assert bench.holds("a.py") == content
        bench.edit("insert", "/testbed/a.py", insert_line=1, new_str="é")
        first = content.index(b"\n") + 1
        assert bench.holds("a.py") == content[:first] + "é".encode() + newline + content[first:]
        shown = bench.edit("view", "/testbed/a.py")
        assert "2" in shown
        assert not set(shown) & {"\r", "\ufeff"}
        assert ("\ufffd" in shown) == (kind in ("invalid", "latin-1", "surrogate"))


@pytest.mark.parametrize("editor", EDITORS)
def test_the_first_line_is_found_behind_a_byte_order_mark(tmp_path, editor):
    with tools(tmp_path, {"a.py": b"\xef\xbb\xbfone\r\ntwo\r\n"}, editor=editor) as bench:
        bench.edit("str_replace", "/testbed/a.py", old_str="one\ntwo\n", new_str="1\n")
        assert bench.holds("a.py") == b"\xef\xbb\xbf1\r\n"
        bench.edit("insert", "/testbed/a.py", insert_line=0, new_str="0\r\n00")
        assert bench.holds("a.py") == b"\xef\xbb\xbf0\r\n00\r\n1\r\n"


@pytest.mark.parametrize("editor", EDITORS)
def test_an_agents_carriage_return_in_a_file_without_any(tmp_path, editor):
    with tools(tmp_path, {"a.py": "one\ntwo\n"}, editor=editor) as bench:
        bench.edit("str_replace", "/testbed/a.py", old_str="one", new_str="1\r")
        assert bench.holds("a.py") == b"1\r\ntwo\n"


@pytest.mark.parametrize("editor", EDITORS)
def test_binary_and_large_files(tmp_path, editor):
    with tools(tmp_path, {"a.py": b"x\0y", "b.py": "x = 1\n"}, editor=editor) as bench:
        for command, more in (
            ("view", {}),
            ("str_replace", {"old_str": "x"}),
            ("insert", {"insert_line": 0, "new_str": "x"}),
        ):
            said = bench.edit(command, "/testbed/a.py", **more)
            assert "Failed to read file /testbed/a.py: it holds NUL bytes" in said
        assert bench.holds("a.py") == b"x\0y"
        with open(bench.tree.root / "huge.py", "wb") as file:
            file.truncate(200 << 20)
        said = bench.edit("view", "/testbed/huge.py", view_range=[1, 2])
        assert "has 209715200 bytes, over the limit of 8388608" in said
        assert "over the limit of 8388608" in bench.edit("create", "/testbed/c.py", file_text="x" * (9 << 20))
        assert not bench.tree.exists("c.py")
        grown = bench.edit("str_replace", "/testbed/b.py", old_str="1", new_str="9" * (9 << 20))
        assert "Failed to write file /testbed/b.py" in grown
        assert bench.holds("b.py") == b"x = 1\n"
        refused = bench.call(editor, command="undo_edit", path="/testbed/b.py")
        assert refused.error  # the refused edit left nothing to undo


@pytest.mark.parametrize("editor", EDITORS)
def test_links_pipes_and_modes(tmp_path, editor):
    with tools(tmp_path, {"a.py": "x = 1\n"}, editor=editor) as bench:
        root = bench.tree.root
        secret = tmp_path / "secret.py"
        secret.write_text("gold")
        (root / "out.py").symlink_to(secret)
        (root / "in.py").symlink_to("a.py")
        (root / "loop.py").symlink_to("loop.py")
        (root / "up").symlink_to("..")
        os.mkfifo(root / "pipe.py")
        (root / "a.py").chmod(0o755)
        for path in ("/testbed/out.py", "/testbed/up/base/a.py", "/testbed/../secret.py"):
            for command, more in (("view", {}), ("str_replace", {"old_str": "gold"}), ("create", {"file_text": "x"})):
                said = bench.edit(command, path, **more)
                assert "lies outside of /testbed" in said
                assert "gold" not in said
        assert secret.read_text() == "gold"
        assert "link" in bench.edit("view", "/testbed/loop.py")
        assert "pipe" in bench.edit("view", "/testbed/pipe.py")
        bench.edit("str_replace", "/testbed/in.py", old_str="1", new_str="2")
        assert bench.holds("a.py") == b"x = 2\n"
        assert (root / "in.py").is_symlink()
        assert (root / "a.py").stat().st_mode & 0o777 == 0o755
        # One file, one history, by whatever name.
        assert "undone successfully" in bench.edit("undo_edit", "/testbed/a.py")
