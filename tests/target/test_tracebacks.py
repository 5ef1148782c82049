"""Tracebacks as the user reads them."""

from __future__ import annotations

import json
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

import pytest
import torch

from oomdoctor.target.contract import failure, raised_in_user_code, summary, user_traceback

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _raised(path: Path, source: str, **names: Any) -> BaseException:
    """The error that running `source` as the file `path` ends with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    try:
        exec(compile(source, str(path), "exec"), {"__name__": "user", **names})  # noqa: S102 - stands for a file
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    pytest.fail("nothing was raised")


def test_only_the_users_frames_and_the_last_library_frame_stay(tmp_path: Path) -> None:
    """A shape error in a deep model is two user lines and the one operation."""
    source = "def step():\n    net(torch.zeros(2, 5))\nstep()\n"
    net = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 4)))
    text = user_traceback(_raised(tmp_path / "model.py", source, torch=torch, net=net), [tmp_path])
    files = [line.strip() for line in text.splitlines() if line.startswith("  File ")]
    assert [line.rpartition(", in ")[2] for line in files] == ["<module>", "step", "forward"]
    assert files[0] == f'File "{tmp_path / "model.py"}", line 3, in <module>'
    assert "linear.py" in files[2]
    assert "mat1 and mat2 shapes cannot be multiplied" in text.splitlines()[-1]


def test_frames_of_the_standard_library_go(tmp_path: Path) -> None:
    """The user's call is enough where the standard library raised."""
    text = user_traceback(_raised(tmp_path / "model.py", "json.loads('{')\n", json=json), [tmp_path])
    assert text.count('  File "') == 1
    assert "JSONDecodeError" in text


def test_our_own_frames_go_and_the_examples_stay() -> None:
    """What we do on the way to the user's code is not their concern, but an example is read as theirs."""
    from oomdoctor.examples import gpt2
    from oomdoctor.target.placement import place

    with pytest.raises(RuntimeError) as ours:
        place(torch.zeros(2, device="meta"), "nosuchdevice")
    assert "oomdoctor/target/" not in user_traceback(ours.value)
    with pytest.raises(TypeError) as theirs:
        gpt2.make_batch("many")  # type: ignore[arg-type]
    assert "examples/gpt2.py" in user_traceback(theirs.value)


@pytest.mark.parametrize("directory", ["project/.venv/lib/python3.11/site-packages/lib", "dist-packages/lib"])
def test_a_library_inside_the_users_directory_is_a_library(tmp_path: Path, directory: str) -> None:
    """A virtual environment in the project is not the project."""
    error = _raised(tmp_path / directory / "code.py", "raise ValueError\n")
    assert not raised_in_user_code(error, [tmp_path])
    assert raised_in_user_code(error, [tmp_path / directory]), "a target that is installed is still the target"


def test_user_code_outside_of_the_roots_is_user_code(tmp_path: Path) -> None:
    """A package that is used from its checkout belongs to no library."""
    error = _raised(tmp_path / "elsewhere" / "code.py", "raise ValueError\n")
    assert raised_in_user_code(error)
    assert raised_in_user_code(error, [tmp_path / "target"])


def test_the_standard_library_is_never_the_users(tmp_path: Path) -> None:
    """Not even where the user's root is above it."""
    del tmp_path
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    stdlib = sysconfig.get_path("stdlib")
    innermost = caught.value.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    assert innermost is not None
    assert innermost.tb_frame.f_code.co_filename.startswith(stdlib)
    assert stdlib not in user_traceback(caught.value, [__import__("pathlib").Path("/")])


def test_the_chain_of_causes_is_kept(tmp_path: Path) -> None:
    """Both errors are shown with their lines, and what `from None` hid stays hidden."""
    source = "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('no a') from {}\n"
    text = user_traceback(_raised(tmp_path / "model.py", source.replace("from {}", "from error")), [tmp_path])
    assert "KeyError: 'a'" in text
    assert "direct cause" in text
    assert text.endswith("ValueError: no a")
    assert "KeyError" not in user_traceback(
        _raised(tmp_path / "m.py", source.replace("from {}", "from None")), [tmp_path]
    )


def test_the_members_of_a_group_are_trimmed_too(tmp_path: Path) -> None:
    """An exception group shows what it holds."""
    source = "try:\n    json.loads('{')\nexcept ValueError as e:\n    raise ExceptionGroup('both', [e, KeyError(1)])\n"
    text = user_traceback(_raised(tmp_path / "model.py", source, json=json), [tmp_path])
    assert "JSONDecodeError" in text
    assert "KeyError: 1" in text
    assert "decoder.py" not in text


_LONG_CHAIN = """
error = None
for i in range(300):
    try:
        raise ValueError(i) from error
    except ValueError as e:
        error = e
raise error
"""


@pytest.mark.parametrize(
    "source",
    [
        "def a(n):\n    b(n)\ndef b(n):\n    a(n)\na(0)\n",
        "raise ValueError('x\\n' * 100_000)\n",
        "raise ValueError('x' * 10_000_000)\n",
        _LONG_CHAIN,
    ],
    ids=["recursion", "many lines", "long line", "long chain"],
)
def test_no_error_fills_the_screen(tmp_path: Path, source: str) -> None:
    """Whatever is raised, at most 61 lines of at most some 400 characters are shown."""
    text = user_traceback(_raised(tmp_path / "model.py", source), [tmp_path])
    assert text.startswith("Traceback (most recent call last):")
    assert len(text.splitlines()) <= 61
    assert len(text) < 61 * 410


class _MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no such size"), "ValueError: no such size"),
        (ValueError(), "ValueError"),
        (ValueError("two\nlines"), "ValueError: two"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 188 + "..."),
        (torch.OutOfMemoryError("full"), "torch.OutOfMemoryError: full"),
        (SyntaxError("bad", ("f.py", 1, 1, "x y", 1, 3)), "SyntaxError: bad"),
        (_MuteError(), "test_tracebacks._MuteError: <exception str() failed>"),
    ],
)
def test_an_error_is_summed_up_in_one_line(error: BaseException, expected: str) -> None:
    """The first line is enough for a heading."""
    assert summary(error) == expected


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(), "`f()` called exit with None"),
        (SystemExit("bye"), "`f()` called exit with 'bye'"),
        (KeyboardInterrupt(), "`f()` raised `KeyboardInterrupt`"),
        (ValueError("x"), "`f()` raised `ValueError: x`"),
    ],
)
def test_a_failure_says_what_raised_what(error: BaseException, message: str) -> None:
    """Exits and errors are worded apart."""
    assert failure(error, "`f()`", ()).message == message


def test_code_without_a_file_takes_no_part() -> None:
    """Frames of code that was made at run time have no lines to show."""
    make: Callable[[], None] = eval("lambda: 1 / 0")  # noqa: S307 - a frame without a file
    with pytest.raises(ZeroDivisionError) as caught:
        make()
    assert "<string>" not in user_traceback(caught.value)
    assert sys.exception() is None
