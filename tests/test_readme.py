"""Every command and output in the README is executed, and what it claims is what happens."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from running import ROOT, run_command

from oomdoctor.cli import app

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = " ".join(README.split())
BLOCKS = [
    [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
]
COMMANDS = [command for block in BLOCKS for command in block]
FILES = dict(re.findall(r"```(?:python|text|toml)\n# ([a-z_]+\.(?:py|log|toml))\n(.*?)```", README, re.DOTALL))
EXIT_CODE = re.compile(r"\s+# exit code (\d+)$")

# What differs from run to run and from machine to machine.
VARYING = re.compile(r"\d+\.\d+ s\b|\b\d+\.\d\d\s*$|oomdoctor \d.*")


@pytest.fixture(scope="module")
def readers_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the README's files."""
    directory = tmp_path_factory.mktemp("reader")
    for name, text in FILES.items():
        (directory / name).write_text(text)
    return directory


def test_the_readme_has_commands() -> None:
    """The blocks are found; without this the tests below could pass on nothing."""
    assert len(COMMANDS) >= 8
    scripts = {"model.py", "loop.py", "train.py", "tutorial.py", "test_model.py"}
    assert set(FILES) == scripts | {"train.log", "pyproject.toml"}
    assert all(command.startswith("oomdoctor ") for command in COMMANDS)


@pytest.mark.null_gpu
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[0])
def test_the_readmes_commands_work(block: list[str], readers_directory: Path) -> None:
    """The commands of each block of the README end as they say, else with 0, one after the other."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # what `python` is
    for command in block:
        said = EXIT_CODE.search(command)
        words = shlex.split(EXIT_CODE.sub("", command))[1:]
        ended = run_command(words, cwd=readers_directory, invocation="oomdoctor", PATH=path)

        assert ended.returncode == (int(said[1]) if said else 0), ended.stderr
        assert ended.stdout or "-o " in command


def test_the_diagnosis_is_what_is_printed(readers_directory: Path) -> None:
    """Every line of the README's diagnosis is in the output of the command beside it, in that order."""
    shown = re.search(r"```text\n(Why\n.*?)```", README, re.DOTALL)
    assert shown is not None
    ended = run_command(["diagnose", "train.log"], cwd=readers_directory)
    assert _squeezed(shown[1]) in _squeezed(ended.stdout)


def test_the_findings_are_what_is_printed(readers_directory: Path) -> None:
    """The README's findings are the output of the command beside them."""
    shown = re.search(r"```text\n(tutorial\.py:.*?)```", README, re.DOTALL)
    assert shown is not None
    ended = run_command(["lint", "tutorial.py"], cwd=readers_directory)
    assert ended.stdout == shown[1]


@pytest.mark.null_gpu
def test_the_regression_is_what_is_printed(tmp_path: Path) -> None:
    """A wider model fails the README's check in the words that the README shows."""
    shown = re.search(r"```text\n(verdict .*?)```", README, re.DOTALL)
    assert shown is not None
    for name in ("model.py", "pyproject.toml"):
        (tmp_path / name).write_text(FILES[name])
    assert run_command(["check", "--update"], cwd=tmp_path).returncode == 0
    (tmp_path / "model.py").write_text(FILES["model.py"].replace("width=512", "width=2048"))

    ended = run_command(["check"], cwd=tmp_path)

    assert ended.returncode == 1
    assert ended.stdout.startswith(shown[1])


@pytest.mark.null_gpu
def test_the_failing_test_fails_in_the_words_that_are_shown(tmp_path: Path) -> None:
    """The README's test fails under pytest, and says what the README shows."""
    shown = re.search(r"```text\n(the peak of .*?)```", README, re.DOTALL)
    assert shown is not None
    (tmp_path / "test_model.py").write_text("# test_model.py\n" + FILES["test_model.py"])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_model.py"]

    ended = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)

    assert ended.returncode == 1
    said, expected = (re.sub(r"(?m)^ +", "", text) for text in (ended.stdout, shown[1]))
    assert expected.strip() in said


def test_the_readmes_settings_are_accepted(tmp_path: Path) -> None:
    """The README's table of settings is one that `lint` reads."""
    (settings,) = (text for text in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "lint" in text)
    (tmp_path / "pyproject.toml").write_text(settings)
    ended = run_command(["lint", ".", "--verbose"], cwd=tmp_path)
    assert (ended.returncode, 'fail-on = "error"' in ended.stderr) == (0, True)


@pytest.mark.null_gpu
def test_the_leak_is_named(readers_directory: Path) -> None:
    """The README's leaking script is diagnosed as one, at the line that keeps the graph."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    words = ["run", "--gpu", "t4", "-o", "leak", "--", "python", "train.py"]
    ended = run_command(words, cwd=readers_directory, PATH=path)
    assert ended.returncode == 1
    line = 1 + FILES["train.py"].splitlines().index(
        next(text for text in FILES["train.py"].splitlines() if "append" in text)
    )
    assert "leak" in ended.stderr
    assert f"train.py:{line}" in ended.stderr


def _squeezed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.null_gpu
def test_the_picture_shows_what_the_command_prints() -> None:
    """The README's picture is the real output of the command beside it, apart from times and versions."""
    sys.path.insert(0, str(ROOT / "docs"))
    from picture import COMMAND, PICTURE, draw, output

    assert f"    {' '.join(COMMAND)}\n" in README
    assert f"docs/{PICTURE.name}" in README
    assert _lines(PICTURE.read_text(encoding="utf-8")) == _lines(draw(output()))


def _lines(svg: str) -> list[str]:
    """The text of each line of an exported terminal, without styles, times and versions."""
    rows: dict[str, list[str]] = {}
    for row, text in re.findall(r'<text [^>]*clip-path="url\(#oomdoctor-line-(\d+)\)">([^<]*)</text>', svg):
        rows.setdefault(row, []).append(text.replace("&#160;", " "))
    assert len(rows) > 20
    lines = ("".join(parts).rstrip() for _, parts in sorted(rows.items(), key=lambda item: int(item[0])))
    return [re.sub(r"\s+", " ", VARYING.sub("", line)) for line in lines]


def test_the_options_table_names_real_options() -> None:
    """Every option in the README exists."""
    names = [str(command.callback.__name__) for command in app.registered_commands if command.callback]
    text = "".join(run_command([name, "--help"]).stdout for name in names)
    command = [sys.executable, "-m", "pytest", "--help"]
    text += subprocess.run(command, check=True, capture_output=True, text=True).stdout
    documented = set(re.findall(r"`(--[a-z-]+)", README))

    assert len(documented) >= 12
    assert {option for option in documented if option not in text} == set()


def test_the_exit_codes_are_those_of_the_code() -> None:
    """The README's table of exit codes is that of `oomdoctor.errors`."""
    from oomdoctor import errors

    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)} == codes


def test_the_accuracy_figures_are_those_of_the_results() -> None:
    """What the README says about trials and exactness is what the committed bench measured."""
    summary = json.loads((ROOT / "tests/bench/results/trials.json").read_text(encoding="utf-8"))["summary"]

    same = summary["cases"] - summary["differing_answers"]
    assert f"({summary['cases']} cases)" in PROSE
    assert f"{same} are the same, and in the other {summary['differing_and_proven']} memory is not monotone" in PROSE
    assert summary["differing_and_proven"] == summary["differing_answers"]
    assert f"a median of {summary['median_trials']:g} trials and at most {summary['worst_trials']} to find" in PROSE
    assert summary["median_trials"] <= 4
    assert summary["worst_trials"] <= 7


def test_the_speed_figures_are_those_of_the_results() -> None:
    """What the README says about speed is what the committed bench measured, and within what it promises."""
    claims = json.loads((ROOT / "tests/bench/results/speed.json").read_text(encoding="utf-8"))["claims"]

    assert all(claim["ratio"] < claim["below"] for claim in claims)
    assert f"`oomdoctor --help` takes {claims[0]['ratio']:g} times as long" in PROSE
    assert f"the probe of the picture {claims[2]['ratio']:g} times as long" in PROSE


def test_the_speed_of_traces_is_the_measured_one() -> None:
    """What the README says of a traced probe and of `gpus --fit` was measured, and is within the promise."""
    rows = json.loads((ROOT / "tests/bench/results/trace_speed.json").read_text(encoding="utf-8"))["rows"]
    probe, catalogue = (rows[name]["wall"]["times"] for name in ("probe", "catalogue"))

    assert f"takes {catalogue:.2f} times as long as `import torch`, and one card's {probe:.2f} times" in PROSE
    assert probe < rows["probe"]["at_most_times"] == 2.5
    assert catalogue < rows["catalogue"]["at_most_times"] == 6


def test_the_tables_of_accuracy_are_those_of_the_results() -> None:
    """What the README shows of the trace engine is what the committed results make of it."""
    sys.path.insert(0, str(ROOT / "tests/bench"))
    from accuracy_readme import with_block

    found = json.loads((ROOT / "tests/bench/results/accuracy.json").read_text(encoding="utf-8"))

    assert with_block(README, found) == README
    assert found["summary"]["trace"]["cases"] >= 38


def test_the_figures_of_check_are_those_of_the_results() -> None:
    """What the README says of a check's time is what was measured and committed, and within what it promises."""
    results = json.loads((ROOT / "tests/bench/results/check_speed.json").read_text(encoding="utf-8"))
    whole, _, cached, unchanged = results["runs"]
    assert f"takes {whole['seconds']} s on two cores, {cached['seconds']} s when nothing has changed" in PROSE
    assert all(run["seconds"] < run["below"] for run in (whole, cached, unchanged))
    assert results["identical_json"]


def test_the_figures_of_lint_are_those_of_the_results() -> None:
    """What the README says of lint's precision, speed and robustness is what was measured and committed."""
    results = ROOT / "tests/bench/results"
    precision = json.loads((results / "lint_precision.json").read_text(encoding="utf-8"))
    speed = json.loads((results / "lint_speed.json").read_text(encoding="utf-8"))["whole"]
    fuzz = json.loads((results / "lint_fuzz.json").read_text(encoding="utf-8"))
    lines, verdicts = sum(project["lines"] for project in precision["projects"]), precision["verdicts"]
    assert f"{len(precision['projects']) - 1} installed projects and the examples of Ignite, {lines:,} lines" in PROSE
    assert f"{verdicts['true']} of {sum(verdicts.values())} are true" in PROSE
    assert f"{speed['lines_per_second']:,} lines a second" in PROSE
    assert f"{fuzz['inputs']:,} mutated scripts crashed it {fuzz['crashes']} times" in PROSE


def test_the_figures_of_diagnosis_are_those_of_the_results() -> None:
    """What the README says about logs, overhead and hostile inputs is what the committed benches measured."""
    results = ROOT / "tests/bench/results"
    logs = json.loads((results / "diagnose_speed.json").read_text(encoding="utf-8"))["logs"]
    ways = json.loads((results / "run_overhead.json").read_text(encoding="utf-8"))["ways"]
    fuzz = json.loads((results / "diagnose_fuzz.json").read_text(encoding="utf-8"))

    assert all(log["ratio"] < 20 for log in logs)
    assert f"2 GB in {logs[0]['ratio']:g} times what `wc -l` takes" in PROSE
    assert f"within {max(log['peak_megabytes'] for log in logs)} MB" in PROSE
    assert all(way["ratio"] < way["below"] for way in ways[1:])
    assert f"takes {ways[2]['ratio']:g} times as long with history" in PROSE
    assert f"[{fuzz['inputs']:,} inputs that nobody meant]" in PROSE
    assert fuzz["crashes"] == 0


def test_a_wheel_holds_everything_that_runs(tmp_path: Path) -> None:
    """An installation from a wheel has the C sources, the catalogue, the schema and the examples."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()

    here = {str(path.relative_to(ROOT)) for path in (ROOT / "oomdoctor").rglob("*") if path.is_file()}
    assert {name for name in here if "__pycache__" not in name} <= set(names)
    assert any(name.endswith("memory.c") for name in names)


@pytest.mark.null_gpu
def test_the_readmes_command_is_checked(readers_directory: Path, tmp_path: Path) -> None:
    """The README's entry for a command passes as it stands, beside the script that it names."""
    (entry,) = (text for text in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "command = " in text)
    (tmp_path / "loop.py").write_text((readers_directory / "loop.py").read_text())
    (tmp_path / "pyproject.toml").write_text(entry)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    ended = run_command(["check", "--gpu", "t4"], cwd=tmp_path, PATH=path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "loop" in ended.stdout


def test_the_answers_for_commands_are_measured() -> None:
    """The README's largest sizes of one GPT-2 are those of the committed measurement."""
    found = json.loads((ROOT / "tests/bench/results/command_truth.json").read_text())
    cards = {script["script"].removesuffix(".py"): script["cards"]["rtx-4090"] for script in found["scripts"]}
    probed = {name: card["probed"] for name, card in cards.items()}
    same = {found["contract"]["rtx-4090"]["probed"], *map(probed.get, ("trainer", "lightning_gpt2", "hydra_app"))}
    assert same == {15}
    assert "| model file, Hugging Face `Trainer`, Lightning, Hydra | 15 |" in README
    assert f"| plain loop | {probed['plain']} |" in README
    assert f"| Accelerate with `accumulate` | {probed['accelerated']} |" in README
    assert {card["bisection"] for card in cards.values() if card["probed"] == 15} == {13}
    for card in cards.values():
        assert card["probed"] in {card["bisection"], *card["larger_that_fit"]}
        assert card["tried"][str(card["probed"] + 1)] is False
