"""Files to write: what is refused beforehand, what is not, and that looking changes nothing."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from core.errors import UserError
from plugins.apps.output_files import append_line, check_outputs, writing


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("none/out", "No such file or directory"),
        ("folder", "Is a directory"),
        ("file/out", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
        ("/proc/out", "cannot be written"),
    ],
)
def test_where_nothing_can_be_written_is_refused(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("there")
    (tmp_path / "loop").symlink_to("loop")
    before = tree(tmp_path)

    with pytest.raises(UserError, match=rf"^run\.plot: \S*{path} cannot be written: .*") as told:
        check_outputs(plot=str(tmp_path / path))

    assert words in str(told.value)
    assert tree(tmp_path) == before


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(mode=stat.S_IRUSR)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write everywhere")

    with pytest.raises(UserError, match="Permission denied"):
        check_outputs(out=str(path))


def test_all_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        check_outputs(html=f"{tmp_path}/a/b", json=None, svg=f"{tmp_path}/c/d")

    first, second = str(told.value).splitlines()
    assert first.startswith("run.html: ")
    assert second.startswith("run.svg: ")


def test_looking_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("there")
    (tmp_path / "new").symlink_to(tmp_path / "later")
    before = tree(tmp_path)

    check_outputs(
        a=str(tmp_path / "old"), b=str(tmp_path / "new"), c=str(tmp_path / "fresh"), d="/dev/null"
    )

    assert tree(tmp_path) == before


def test_the_reader_of_a_pipe_gets_what_is_written_after_the_look(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()

    check_outputs(out=str(pipe))
    append_line("out", pipe, "the answer")

    reader.join(10)
    assert read == ["the answer\n"]


def test_no_name_is_there_even_for_a_moment_that_another_rank_could_see(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except (AttributeError, OSError):
        pytest.skip("files without a name are not to be had here")
    os.utime(tmp_path, ns=(1, 1))

    check_outputs(out=str(tmp_path / "out"))

    assert tmp_path.stat().st_mtime_ns == 1


def test_what_fails_later_is_told_in_the_same_words() -> None:
    with pytest.raises(UserError, match=r"^run\.out: /dev/full cannot be written: No space left"):
        append_line("out", "/dev/full", "{}")
    with pytest.raises(UserError, match="no reason"), writing("out", "x"):
        raise OSError("no reason")
