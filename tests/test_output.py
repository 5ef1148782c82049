"""Where text goes: whole files or none, and what a terminal takes."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oomdoctor import output
from oomdoctor.errors import UsageError
from oomdoctor.output import Terminal, check_writable, deliver, printable, write_atomically

LARGE = 3_000_000
WRITER = f"""
from pathlib import Path
from oomdoctor.output import write_atomically
import sys
print("ready", flush=True)
while True:
    for letter in "ab":
        write_atomically(Path(sys.argv[1]), letter * {LARGE})
"""


def names(directory: Path) -> list[str]:
    """What a directory holds, hidden files included."""
    return sorted(path.name for path in directory.iterdir())


def test_writes_text_as_it_is(tmp_path: Path) -> None:
    """The file holds the text in UTF-8, its newlines untouched, and what no encoding can hold as `?`."""
    write_atomically(tmp_path / "report.txt", "a\r\nb\n\u2588\ud800")
    assert (tmp_path / "report.txt").read_bytes() == b"a\r\nb\n\xe2\x96\x88?"
    assert names(tmp_path) == ["report.txt"]


def test_mode_is_that_of_an_ordinary_file(tmp_path: Path) -> None:
    """A new file has the mode that the umask asks for, an existing one keeps its own."""
    ordinary, new, kept = (tmp_path / name for name in ("ordinary", "new", "kept"))
    ordinary.touch()
    kept.touch(mode=0o600)
    for path in (new, kept):
        write_atomically(path, "x")
    assert new.stat().st_mode == ordinary.stat().st_mode
    assert kept.stat().st_mode & 0o777 == 0o600


def test_link_is_followed(tmp_path: Path) -> None:
    """Writing to a symbolic link writes the file that it names."""
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


def test_device_is_written_to() -> None:
    """A device stays the device that it is."""
    write_atomically(Path("/dev/null"), "x")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".", "is a directory"),
        ("missing/report.txt", "is not a directory"),
        ("file/report.txt", "is not a directory"),
        ("n" * 300, "File name too long"),
        ("a\0b", "cannot be written"),
        ("loop", "cannot be written"),
    ],
)
def test_places_that_cannot_be_written(tmp_path: Path, name: str, expected: str) -> None:
    """Each place that takes no file is refused in words, with what to do, and nothing is left behind."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    before = names(tmp_path)
    for refuse in (check_writable, lambda path: write_atomically(path, "x")):
        with pytest.raises(UsageError, match=expected) as caught:
            refuse(tmp_path / name)
        assert caught.value.hint
    assert names(tmp_path) == before


def test_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between writing and renaming keeps the old text and removes the new."""
    target = tmp_path / "report.txt"
    target.write_text("old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, "new")
    assert names(tmp_path) == ["report.txt"]
    assert target.read_text() == "old"


def test_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    """Whenever a writer is killed, the file is one of the texts that it wrote, whole."""
    target = tmp_path / "report.txt"
    for delay in (0.01, 0.023, 0.04, 0.061, 0.08):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            while not target.exists():
                time.sleep(0.001)
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        text = target.read_text()
        assert text in ("a" * LARGE, "b" * LARGE)


def test_delivered_file_is_announced_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where a file takes the report, standard output stays empty and standard error names the file."""
    deliver("text", tmp_path / "report.txt")
    assert capfd.readouterr() == ("", f"Wrote {tmp_path / 'report.txt'}\n")


def test_stream_that_cannot_encode_gets_question_marks() -> None:
    """A report on an ASCII stream loses characters, not the report."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    deliver("caf\u00e9 \u2588\n", stdout=stream)
    assert stream.buffer.getvalue() == b"caf? ?\n"


class FakeTerminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.mark.parametrize(
    ("environment", "on_terminal", "elsewhere"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_color_follows_the_environment(
    environment: dict[str, str],
    on_terminal: bool,
    elsewhere: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Terminals get colour and files do not, unless the environment says otherwise."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Terminal.of(FakeTerminal()).color is on_terminal
    assert Terminal.of(io.StringIO()).color is elsewhere


@pytest.mark.parametrize(
    ("columns", "screen", "on_terminal", "elsewhere"),
    [("", 100, 100, 80), ("", 300, 120, 80), ("150", 100, 150, 150), ("x", 100, 100, 80), ("0", 90, 90, 80)],
)
def test_width(columns: str, screen: int, on_terminal: int, elsewhere: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal has its own width up to what reads well, a file 80 columns, and `COLUMNS` overrides both."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_given, **_named: os.terminal_size((screen, 24)))
    assert Terminal.of(FakeTerminal()).width == on_terminal
    assert Terminal.of(io.StringIO()).width == elsewhere


def test_encoding_decides_about_unicode() -> None:
    """Streams that cannot encode blocks and lines get ASCII."""
    assert Terminal.of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")).unicode
    assert not Terminal.of(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")).unicode


def test_closed_stream_is_no_terminal() -> None:
    """A stream that was closed can be asked without harm."""
    stream = io.StringIO()
    stream.close()
    assert not output.is_terminal(stream)


@pytest.mark.parametrize(
    "character", ["\u061c", "\u200e", "\u200f", *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))]
)
def test_what_turns_the_direction_of_writing_is_shown(character: str) -> None:
    """A name with such a character reads as it is in an error; what a terminal would obey is left out."""
    assert printable(f"a{character}\x1b[31mb\tc\n") == f"a\\u{ord(character):04x}[31mb\tc\n"
