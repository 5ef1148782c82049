"""Which Python a command runs is found without running the command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from oomdoctor.errors import NoAnswerError
from oomdoctor.run.environment import find_interpreter, torch_of


@pytest.fixture
def bin_directory(tmp_path: Path) -> Path:
    """A directory for PATH with a Python and scripts in it."""
    scripts = {
        "torchrun": "#!{python}\nimport sys\n",
        "env-script": "#!/usr/bin/env python3\n",
        "long": "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "shell-script": "#!/bin/sh\npython3 train.py\n",
        "odd": "#!/bin/sh\n'''exec' \"unfinished\n",
        "uv": '#!/bin/sh\n[ "$1 $2" = \'python find\' ] && echo "warning" >&2 && echo "/project/${{3:-own}}/python"\n',
        "mpirun": "#!/bin/sh\n",
        "empty": "",
    }
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "python3").symlink_to(sys.executable)
    for name, text in scripts.items():
        path = directory / name
        path.write_text(text.format(python=directory / "python3"))
        path.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python3 train.py", "python3"),
        ("torchrun --nproc-per-node 2 train.py", "python3"),
        ("env-script", "python3"),
        ("long", "python3"),
        ("mpirun -n 4 python3 train.py", "python3"),
        ("mpirun torchrun", "python3"),
        ("shell-script", None),
        ("odd", None),
        ("empty", None),
        ("no-such-thing", None),
        ("uv run train.py", "/project/own/python"),
        ("uv run --python 3.12 train.py", "/project/3.12/python"),
        ("uv sync", None),
    ],
)
def test_the_python_of_a_command(bin_directory: Path, command: str, expected: str | None) -> None:
    """By its name, by a script's first line, by uv's word, or behind a launcher; None where nothing tells."""
    found = find_interpreter(command.split(), {"PATH": f"{bin_directory}:/usr/bin:/bin"})

    assert found == (str(bin_directory / expected) if expected == "python3" else expected)


def test_torch_is_found_where_that_python_has_it() -> None:
    """The same torch is found from inside and by asking the Python; it is not imported for that."""
    virtual = str(Path(sys.executable).with_name("python3"))

    assert torch_of(virtual, os.environ) == torch_of(None, os.environ)


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    """The answer names the Python that the command would have run."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)

    with pytest.raises(NoAnswerError, match="has no PyTorch") as raised:
        torch_of(str(python), os.environ)
    assert str(python) in raised.value.message
