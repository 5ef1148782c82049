"""`oomdoctor run` is not noticed: streams, descriptors, signals and exit codes are the command's own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import INVOCATIONS, ROOT, Run

from oomdoctor.run.environment import AGENT_DIRECTORY

RUN = [*INVOCATIONS["python -m oomdoctor"], "run"]

# Says that it is ready, and then which signals come.
LISTENER = """
import os, signal, sys, time
seen = []
def note(number, frame):
    seen.append(number)
for number in (2, 15, 1, 3, 10, 12):
    signal.signal(number, note)
print("ready", os.getpid(), os.getppid(), flush=True)
deadline = time.monotonic() + 20
while time.monotonic() < deadline and not seen:
    time.sleep(0.02)
time.sleep(0.3)
print("seen", *seen, flush=True)
sys.exit(5)
"""


def start(*command: str, cwd: Path, **options: object) -> subprocess.Popen[str]:
    """Start a command under `oomdoctor run`, with its output in a pipe."""
    return subprocess.Popen([*RUN, "--", *command], cwd=cwd, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 130", 130), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)],
)
def test_the_exit_code_is_the_commands(oomdoctor: Run, tmp_path: Path, script: str, exit_code: int) -> None:
    """An exit status is passed through, a signal's death is 128 and its number, and nothing is printed or left."""
    ended = oomdoctor("run", "--", "sh", "-c", script)

    assert (ended.returncode, ended.stdout, ended.stderr) == (exit_code, "", "")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_answered_as_a_shell_does(oomdoctor: Run, tmp_path: Path) -> None:
    """A command that does not exist is 127, one that cannot be run 126, and none at all a usage error."""
    (tmp_path / "plain.txt").write_text("no program\n")
    (tmp_path / "folder").mkdir()
    asked = (["--", "no-such-command"], ["./plain.txt"], ["./folder/"], [])
    missing, unfit, folder, none = (oomdoctor("run", *rest) for rest in asked)

    assert missing.returncode == 127
    assert missing.stderr.startswith("error: command not found: `no-such-command`\n\nhint: ")
    assert unfit.returncode == 126
    assert unfit.stderr.startswith("error: `./plain.txt` cannot be run: Permission denied\n\nhint: ")
    assert folder.returncode == 126
    assert folder.stderr.startswith("error: `./folder/` is a folder\n\nhint: name the program in it")
    assert "python ./folder/train.py" in folder.stderr
    assert none.returncode == 2
    assert "oomdoctor run -- python train.py" in none.stderr


def test_a_question_about_a_command_that_is_not_there_is_a_wrong_use(oomdoctor: Run) -> None:
    """`probe` and its like have no exit code of a command to pass through."""
    sizes = ("--batch-size", "{micro_batch}", "--grad-accum", "{accumulation_steps}")
    for question in (["probe", "--gpu", "t4"], ["prescribe", "--gpu", "t4"], ["verify"]):
        ended = oomdoctor(*question, "--", "no-such-command", *sizes)
        assert (ended.returncode, "command not found: `no-such-command`" in ended.stderr) == (2, True)


@pytest.mark.parametrize("options", [[], ["--no-history"], ["--"], ["--max-entries", "5", "--"]])
def test_everything_behind_the_command_is_the_commands(oomdoctor: Run, options: list[str]) -> None:
    """Options of ours behind the command, a second `--`, empty words and wildcards reach it as they are."""
    words = ["--gpu", "--help", "--", "", "*", "a b", "$HOME"]

    ended = oomdoctor("run", *options, sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)

    assert ended.stdout == f"{words}\n"
    assert ended.returncode == 0


def test_streams_and_descriptors_are_inherited(tmp_path: Path) -> None:
    """Standard input reaches the command, and so does a descriptor that a shell opened for it."""
    read, write = os.pipe()
    ended = subprocess.run(
        [*RUN, "--", "sh", "-c", f"cat; echo extra > /dev/fd/{write}"],
        input="through\n",
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        pass_fds=(write,),
        check=False,
        timeout=60,
    )
    os.close(write)

    assert (ended.returncode, ended.stdout) == (0, "through\n")
    assert os.read(read, 100) == b"extra\n"
    os.close(read)


def test_the_environment_differs_by_the_hook_alone(tmp_path: Path) -> None:
    """Nothing but PYTHONPATH's first entry and our own variables is added, and nothing is taken away."""
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    command = [sys.executable, "-E", "-c", show]
    before = f"{os.environ.get('PYTHONPATH') or ROOT}:/second"
    base = {**os.environ, "PYTHONPATH": before}
    plain, under = (
        json.loads(subprocess.check_output(words, cwd=tmp_path, env=base, text=True))
        for words in (command, [*RUN, "--", *command])
    )
    added = {name for name in under if name not in plain}
    changed = {name for name in plain if under.get(name) != plain[name]}

    assert changed <= {"PYTHONPATH"}
    assert under["PYTHONPATH"] == f"{AGENT_DIRECTORY}:{before}"
    own = ("DIRECTORY", "MAX_ENTRIES", "MEMORY_BYTES", "CARD_BYTES", "RESERVE_BYTES", "CARD_OPTIONS")
    assert added == {f"OOMDOCTOR_RUN_{name}" for name in own}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_is_passed_on_once(tmp_path: Path, number: signal.Signals) -> None:
    """What is sent to us reaches the command once, and its exit code comes back."""
    process = start(sys.executable, "-S", "-c", LISTENER, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)

    assert rest == f"seen {int(number)}\n"
    assert process.returncode == 5


def test_ctrl_c_at_a_terminal_is_delivered_once(tmp_path: Path) -> None:
    """The terminal interrupts the whole foreground group, so we pass nothing on; the command sees a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        command = [sys.executable, "-S", "-c", f"import os; assert os.isatty(0)\n{LISTENER}"]
        os.execv(RUN[0], [*RUN, "--", *command])  # noqa: S606 - in a terminal of its own
    output = b""
    while b"ready" not in output:
        output += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while b"seen" not in output or not output.endswith(b"\n"):
        output += os.read(terminal, 1024)
    _, status = os.waitpid(child, 0)

    assert b"seen 2\r\n" in output
    assert os.waitstatus_to_exitcode(status) == 5


def test_a_stop_stops_both_and_a_continue_continues_both(tmp_path: Path) -> None:
    """SIGTSTP sent to us stops the command and us, and SIGCONT wakes both."""
    # In a group of its own below the suite's: the kernel stops no orphaned group, as a suite in the background is one.
    process = start(sys.executable, "-S", "-c", LISTENER, cwd=tmp_path, process_group=0)
    assert process.stdout is not None
    command = int(process.stdout.readline().split()[1])
    try:
        process.send_signal(signal.SIGTSTP)
        _wait_for_state(command, "T")
        _wait_for_state(process.pid, "T")
        process.send_signal(signal.SIGCONT)
        _wait_for_state(command, "SR")
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()

    assert rest == "seen 15\n"
    assert process.returncode == 5


def _wait_for_state(pid: int, states: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        if state in states:
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is in state {state}, not in one of {states}")


def test_a_kill_without_a_trace_is_not_called_an_oom(oomdoctor: Run) -> None:
    """SIGKILL while the kernel counted no out-of-memory kill is said to be something else, perhaps."""
    ended = oomdoctor("run", "--", "sh", "-c", "kill -KILL $$")

    assert ended.returncode == 137
    assert "ended by SIGKILL" in ended.stderr
    assert "it may be something else" in ended.stderr
    assert "\nhint: " in ended.stderr


def test_an_output_that_cannot_be_is_said_before_the_command_starts(oomdoctor: Run, tmp_path: Path) -> None:
    """`-o` that names a file is a usage error, and the command does not run."""
    (tmp_path / "file").write_text("")

    ended = oomdoctor("run", "-o", "file", "--", "touch", "ran")

    assert ended.returncode == 2
    assert "is to be a directory" in ended.stderr
    assert ended.stderr.endswith(f"hint: name a directory, such as `--output {tmp_path / 'file-reports'}`\n")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "options", [["--gpu", "no-such-card"], ["--memory", "much"], ["--gpu", "4090", "--device", "0"]]
)
def test_a_device_that_cannot_be_is_a_usage_error(oomdoctor: Run, options: list[str]) -> None:
    """Unknown cards, sizes that are none and options that exclude each other end before the command starts."""
    ended = oomdoctor("run", *options, "--", "echo", "ran")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")
