"""Every command and output in the README and on the site is executed, and what they claim is what happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import outputs
import pytest
from documentation import BLOCKS, COMMANDS, FILES, PAGES, PROSE, TEXT, answers, page
from running import ROOT, run_command

from oomdoctor.cli import app

README = PAGES["README.md"]


@pytest.fixture(scope="module")
def readers_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the pages show."""
    directory = tmp_path_factory.mktemp("reader")
    outputs.lay_out(directory, "")
    return directory


def test_the_pages_have_commands() -> None:
    """The blocks are found; without this the tests below could pass on nothing."""
    assert len(COMMANDS) >= 8
    scripts = {"model.py", "loop.py", "train.py", "tutorial.py", "test_model.py", "padded.py", "normed.py"}
    scripts |= {"literal.py", "accumulating.py", "gpt.py", "pretrain.py", "sharded.py"}
    scripts |= {"training.py", "optuna_sweep.py", "ray_sweep.py"}
    settings = {"pyproject.toml", ".github/workflows/memory.yml", ".pre-commit-config.yaml"}
    assert set(FILES) == scripts | settings | {"train.log"}
    assert all(command.line.startswith("oomdoctor ") for command in COMMANDS)
    assert sum(command.shown is not None for command in COMMANDS) >= 10


def test_a_file_is_the_same_on_every_page() -> None:
    """Two pages that show a file of the same name show the same file, so that every command finds what it needs."""
    shown = [found for text in PAGES.values() for found in outputs.files(text).items()]
    assert set(shown) == set(FILES.items())


@pytest.mark.null_gpu
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("path", [path for path, blocks in BLOCKS.items() if blocks])
def test_the_commands_of_a_page_print_what_it_shows(path: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The commands of a page end as they say, else with 0, one after the other, and print what stands below them."""
    folder = tmp_path_factory.mktemp("reader")
    outputs.lay_out(folder, PAGES[path])
    for command, got in answers(path, folder, tmp_path_factory):
        assert got.exit_code == command.exit_code, got.stderr
        assert got.printed or "-o" in command.words
        assert command.differences(got.printed) == [], f"`make docs-outputs` writes what `{command.line}` prints now"


def test_a_difference_is_seen() -> None:
    """A page that shows another number, a line more or a line less than the command prints differs from it."""
    ((command,),) = outputs.commands("```console\n$ oomdoctor x\nsize  7\nin 0.10 s\n```\n")
    assert command.differences("size  7\nin 0.25 s\n") == []
    assert all(command.differences(text) for text in ("size  8\nin 0.1 s\n", "size  7\n", "size  7\nin 0.1 s\nmore\n"))
    ((begun,),) = outputs.commands("```console\n$ oomdoctor x\nsize  7\n...\n```\n")
    assert begun.differences("size  7\nin 0.25 s\n") == []
    assert begun.differences("in 0.25 s\nsize  7\n")


@pytest.mark.null_gpu
def test_the_regression_is_what_is_printed(tmp_path: Path) -> None:
    """A wider model fails the documentation's check in the words that it shows."""
    shown = re.search(r"```text\n(verdict .*?)```", page("commands/check.md"), re.DOTALL)
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
    """The documentation's test fails under pytest, and says what its page shows."""
    shown = re.search(r"```text\n(the peak of .*?)```", page("pytest.md"), re.DOTALL)
    assert shown is not None
    (tmp_path / "test_model.py").write_text(FILES["test_model.py"])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_model.py"]

    ended = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)

    assert ended.returncode == 1
    said, expected = (re.sub(r"(?m)^ +", "", text) for text in (ended.stdout, shown[1]))
    assert expected.strip() in said


def test_the_readmes_settings_are_accepted(tmp_path: Path) -> None:
    """The documentation's table of settings is one that `lint` reads."""
    (settings,) = (text for text in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL) if "lint" in text)
    (tmp_path / "pyproject.toml").write_text(settings)
    ended = run_command(["lint", ".", "--verbose"], cwd=tmp_path)
    assert (ended.returncode, 'fail-on = "error"' in ended.stderr) == (0, True)


@pytest.mark.null_gpu
def test_the_leak_is_named(readers_directory: Path) -> None:
    """The documentation's leaking script is diagnosed as one, at the line that keeps the graph."""
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
    return [re.sub(r"\s+", " ", outputs.VARYING.sub("", line)) for line in lines]


def test_the_options_table_names_real_options() -> None:
    """Every option in the documentation exists."""
    names = [str(command.callback.__name__) for command in app.registered_commands if command.callback]
    text = "".join(run_command([name, "--help"]).stdout for name in names)
    command = [sys.executable, "-m", "pytest", "--help"]
    text += subprocess.run(command, check=True, capture_output=True, text=True).stdout
    documented = set(re.findall(r"`(--[a-z-]+)", TEXT))

    assert len(documented) >= 12
    assert {option for option in documented if option not in text} == set()


def test_the_exit_codes_are_those_of_the_code() -> None:
    """The documentation's table of exit codes is that of `oomdoctor.errors`."""
    from oomdoctor import errors

    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page("commands/report.md"), re.MULTILINE)} == codes


def test_the_accuracy_figures_are_those_of_the_results() -> None:
    """What the documentation says about trials and exactness is what the committed bench measured."""
    summary = json.loads((ROOT / "tests/bench/results/trials.json").read_text(encoding="utf-8"))["summary"]

    same = summary["cases"] - summary["differing_answers"]
    assert f"({summary['cases']} cases)" in PROSE
    assert f"{same} are the same, and in the other {summary['differing_and_proven']} memory is not monotone" in PROSE
    assert summary["differing_and_proven"] == summary["differing_answers"]
    assert f"a median of {summary['median_trials']:g} trials and at most {summary['worst_trials']} to find" in PROSE
    assert summary["median_trials"] <= 4
    assert summary["worst_trials"] <= 7


def test_the_workspaces_are_those_of_the_results() -> None:
    """What the documentation says of cuDNN's workspaces was measured: all are equal, and all processes ended."""
    found = json.loads((ROOT / "tests/bench/results/workspaces.json").read_text(encoding="utf-8"))

    served = sum(card["convolutions"] for card in found["cards"].values())
    assert served == sum(card["equal"] for card in found["cards"].values())
    assert f"All {served} for which cuDNN has an engine are equal to the byte" in PROSE
    assert len(found["cards"]) == 5
    assert found["exits"] == [50, 50]
    assert "50 of 50 processes" in PROSE


def test_the_speed_of_sweeps_is_the_measured_one() -> None:
    """What the documentation says of sweeps was measured: none of their trials is lost, and sizes are quick."""
    found = json.loads((ROOT / "tests/bench/results/sweep.json").read_text(encoding="utf-8"))
    sizes, sweeps = found["sizes"], (found["one_node"], found["two_nodes"])

    assert f"by {sizes['worker_starts']} processes of ours" in PROSE
    assert sizes["worker_starts"] < sizes["configurations"]
    assert sizes["seconds"] < found["below_seconds"] == 90
    assert f"{sizes['configurations']} configurations are sized in {sizes['seconds']:g} s" in PROSE
    assert all(f"{sweep['trials']} trials" in PROSE and f" {sweep['seconds']:g} s on " in PROSE for sweep in sweeps)
    assert all(sweep["errors"] == [] and sweep["effective_batches"] == [512] for sweep in sweeps)
    assert found["two_nodes"]["killed_after"] == [20]


def test_the_speed_figures_are_those_of_the_results() -> None:
    """What the documentation says about speed is what the committed bench measured, and within what it promises."""
    claims = json.loads((ROOT / "tests/bench/results/speed.json").read_text(encoding="utf-8"))["claims"]

    assert all(claim["ratio"] < claim["below"] for claim in claims)
    assert f"`oomdoctor --help` takes {claims[0]['ratio']:g} times as long" in PROSE
    assert f"the probe of the picture {claims[2]['ratio']:g} times as long" in PROSE


def test_the_speed_of_traces_is_the_measured_one() -> None:
    """What the documentation says of a traced probe and of `gpus --fit` was measured, and is within the promise."""
    rows = json.loads((ROOT / "tests/bench/results/trace_speed.json").read_text(encoding="utf-8"))["rows"]
    probe, catalogue = (rows[name]["wall"]["times"] for name in ("probe", "catalogue"))

    assert f"takes {catalogue:.2f} times as long as `import torch`, and one card's {probe:.2f} times" in PROSE
    assert probe < rows["probe"]["at_most_times"] == 2.5
    assert catalogue < rows["catalogue"]["at_most_times"] == 6


def test_the_tables_of_accuracy_are_those_of_the_results() -> None:
    """What the documentation shows of the trace engine is what the committed results make of it."""
    sys.path.insert(0, str(ROOT / "tests/bench"))
    from accuracy_page import with_block

    found = json.loads((ROOT / "tests/bench/results/accuracy.json").read_text(encoding="utf-8"))

    assert with_block(page("accuracy.md"), found) == page("accuracy.md")
    assert found["summary"]["trace"]["cases"] >= 38


def test_the_comparison_with_a_gpu_is_that_of_the_results() -> None:
    """What the documentation shows of a real GPU is in the committed file, and within what the project promises."""
    sys.path.insert(0, str(ROOT / "tests/bench"))
    from accuracy_page import GPU, with_gpu

    found = json.loads((ROOT / "tests/bench/results" / GPU).read_text(encoding="utf-8"))
    errors = [abs(error) for row in found["models"].values() for error in row["comparison"]["allocated_bytes"]]

    differences = [row["comparison"]["maximum_relative_error"] or 0.0 for row in found["cases"].values()]
    lower = sorted(-difference for difference in differences if difference)

    assert with_gpu(page("accuracy.md"), found) == page("accuracy.md")
    assert f"peaks of {len(errors) // 2} models at two sizes each are at most {max(errors):.1%} off" in PROSE
    assert f"{len(differences) - len(lower)} of {len(differences)} largest micro-batches are the same" in PROSE
    assert f"the other two are {lower[0]:.1%} and {lower[1]:.1%} lower" in PROSE


def test_the_speed_of_a_frontier_is_the_measured_one() -> None:
    """What the documentation says of twelve lengths was measured, is within the promise, and each cell is a file's."""
    results = json.loads((ROOT / "tests/bench/results/frontier_speed.json").read_text(encoding="utf-8"))
    wall = results["wall"]

    assert f"take {wall['command']} s on two cores, {wall['times']} times as long as `import torch`" in PROSE
    assert wall["command"] < results["below_seconds"] == 20
    assert len(results["cells"]) == 12
    assert results["cells"] == results["of_files"]


def test_the_models_by_name_are_those_of_the_results() -> None:
    """What the documentation says of models by name was run and committed, and those by hand have the same answers."""
    results = json.loads((ROOT / "tests/bench/results/hub.json").read_text(encoding="utf-8"))
    rows = {row.pop("target"): row for row in results["rows"] if row.pop("seconds")}
    by_hand = {name.removesuffix(", by hand"): rows.pop(name) for name in [*rows] if name.endswith(", by hand")}
    answered = [name for name, row in rows.items() if row["maximum"]]

    kinds = [sum(name.startswith(kind) for name in answered) for kind in ("timm:", "torchvision:", "hf:")]
    assert "{} models of timm, {} of torchvision and {} of transformers".format(*kinds) in PROSE
    assert f"{len(answered)} of {len(rows)} have an answer and {len(results['connections'])} connections" in PROSE
    assert len(by_hand) == 10
    assert all(rows[name] == row for name, row in by_hand.items())


def test_the_figures_of_check_are_those_of_the_results() -> None:
    """What the documentation says of a check's time is what was measured and committed, and within what it promises."""
    results = json.loads((ROOT / "tests/bench/results/check_speed.json").read_text(encoding="utf-8"))
    whole, _, cached, unchanged = results["runs"]
    assert f"takes {whole['seconds']} s on two cores, {cached['seconds']} s when nothing has changed" in PROSE
    assert all(run["seconds"] < run["below"] for run in (whole, cached, unchanged))
    assert results["identical_json"]


def test_the_figures_of_lint_are_those_of_the_results() -> None:
    """What the documentation says of lint's precision, speed and robustness is what was measured and committed."""
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
    """What the documentation says about logs, overhead and hostile inputs is what the committed benches measured."""
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
    assert f"was given {fuzz['inputs']:,} inputs that nobody meant" in PROSE

    counts = json.loads((results / "diagnose_messages.json").read_text(encoding="utf-8"))
    seen, now, held = counts["unseen_first_run"], counts["same_after_mending"], counts["unseen_after_mending"]
    assert f"Of {seen['messages']} messages from public issues" in PROSE
    assert f"the device of {seen['device']} and the size that was asked for of {seen['tried']}" in PROSE
    assert f"the label accepts in {seen['cause']}, and all was right in {seen['all']}" in PROSE
    assert f"every number of the {now['messages']} and names an accepted cause in {now['cause']}" in PROSE
    assert f"Of {held['messages']} more" in PROSE
    assert held["all"] == held["messages"]


def test_the_readme_sums_up_what_was_measured() -> None:
    """The README's lines on accuracy have the figures of the committed measurements."""
    results = ROOT / "tests/bench/results"
    trials = json.loads((results / "trials.json").read_text(encoding="utf-8"))["summary"]
    trace = json.loads((results / "accuracy.json").read_text(encoding="utf-8"))["summary"]["trace"]
    lint = json.loads((results / "lint_precision.json").read_text(encoding="utf-8"))
    fidelity = json.loads((results / "fidelity.json").read_text(encoding="utf-8"))["summary"]["tools"]
    intervals = json.loads((results / "fidelity_intervals.json").read_text(encoding="utf-8"))["summary"]
    prose = " ".join(README.split())
    same = trials["cases"] - trials["differing_answers"]
    exact, *_, equal, _ = trace["promises"]
    assert (exact["promise"], equal["promise"]) == ("peak allocated equal to the byte", "maximum micro-batch equal")
    lines = sum(project["lines"] for project in lint["projects"])
    assert f"{same} of {trials['cases']} answers" in prose
    assert f"the other {trials['differing_and_proven']} are proven" in prose
    assert f"a median of {trials['median_trials']:g} trials" in prose
    counts = [f"{round(row['share'] * row['of'])} of {row['of']}" for row in (exact, equal)]
    assert f"the same peak to the byte for {counts[0]} models" in prose
    decisions, ours = (fidelity["oomdoctor"][name] for name in ("oom", "all"))
    assert f"Against {decisions['rows']} runs" in prose
    assert f"right in {decisions['right']} whether they ran out" in prose
    best = min(fidelity[name]["all"]["median"] for name in ("xmem", "dnnmem"))
    assert f"a median of {ours['median']:.1%} off their peak, where the best other estimator is {best:.1%} off" in prose
    assert f"Of {intervals['rows']} models with a published size that trained on an RTX 3090" in prose
    assert f"{intervals['inside']} have their largest size in between" in prose
    assert f"in {len(intervals['recommended_ran_out'])} a recommended size ran out" in prose
    assert f"the same largest micro-batch in {counts[1]} answers" in prose
    assert f"{lint['verdicts']['true']} of {sum(lint['verdicts'].values())} findings in {lines:,} lines" in prose


def test_the_readme_is_short() -> None:
    """The README fits what somebody reads before installing: the rest is on the site."""
    assert len(README.splitlines()) <= 200


def test_links_lead_somewhere() -> None:
    """Each relative link of the README and of the pages leads to a file; `make docs` checks the anchors."""
    built = {"docs/rules.md", "docs/contributing.md"}  # from the code, and from CONTRIBUTING.md
    links = [
        (path, target)
        for path, text in {**PAGES, "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")}.items()
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    ]
    assert len(links) > 40
    for path, target in links:
        found = ((ROOT / path).parent / target).resolve().relative_to(ROOT)
        assert str(found) in built or (ROOT / found).exists(), f"{path} links to {target}"


def test_paths_that_pages_name_are_there() -> None:
    """Each file and folder of this repository that a page names exists."""
    tops = "oomdoctor|tests|docs|\\.ci|\\.github"
    texts = {**PAGES, "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")}
    named = [(path, name) for path, text in texts.items() for name in re.findall(rf"`((?:{tops})/[\w./*-]*)`", text)]
    assert len(named) > 10
    for path, name in named:
        assert list(ROOT.glob(name.rstrip("/"))), f"{path} names {name}"


def test_names_that_pages_give_a_file_are_in_it() -> None:
    """Where a page says that a name is in a file, or of a file, the file has it."""
    pair = r"`(\w+)`\s+(?:of|in)\s+`(oomdoctor/[\w./]+)`"
    named = [(path, *found) for path, text in PAGES.items() for found in re.findall(pair, text)]
    assert len(named) >= 3
    for path, name, file in named:
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8")), f"{path}: no {name} in {file}"


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
    """The documentation's entry for a command passes as it stands, beside the script that it names."""
    (entry,) = (text for text in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL) if "command = " in text)
    (tmp_path / "loop.py").write_text((readers_directory / "loop.py").read_text())
    (tmp_path / "pyproject.toml").write_text(entry)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    ended = run_command(["check", "--gpu", "t4"], cwd=tmp_path, PATH=path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "loop" in ended.stdout


def test_the_answers_for_commands_are_measured() -> None:
    """The documentation's largest sizes of one GPT-2 are those of the committed measurement."""
    found = json.loads((ROOT / "tests/bench/results/command_truth.json").read_text())
    cards = {script["script"].removesuffix(".py"): script["cards"]["rtx-4090"] for script in found["scripts"]}
    probed = {name: card["probed"] for name, card in cards.items()}
    same = {found["contract"]["rtx-4090"]["probed"], *map(probed.get, ("trainer", "lightning_gpt2", "hydra_app"))}
    assert same == {15}
    assert "| model file, Hugging Face `Trainer`, Lightning, Hydra | 15 |" in TEXT
    assert f"| plain loop | {probed['plain']} |" in TEXT
    assert f"| Accelerate with `accumulate` | {probed['accelerated']} |" in TEXT
    assert {card["bisection"] for card in cards.values() if card["probed"] == 15} == {13}
    for card in cards.values():
        assert card["probed"] in {card["bisection"], *card["larger_that_fit"]}
        assert card["tried"][str(card["probed"] + 1)] is False
