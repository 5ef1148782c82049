"""From tables to questions: one entry a card, every value checked before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.check.entries import DEFAULTS, Entry, chosen_entries
from oomdoctor.config.check import CheckConfiguration, configure_check
from oomdoctor.config.schema import CheckKeys
from oomdoctor.errors import UsageError
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Axis, Bucket, EvaluationBetween, Generation, SearchedSize, Variant
from oomdoctor.units import GIB

PRETRAIN = '[[check]]\nname = "pretrain"\ntarget = "train/model.py"\n'
TUNE = '[[check]]\nname = "tune"\ntarget = "tune.py"\n'


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()


def configured(text: str, command_line: CheckKeys | None = None) -> CheckConfiguration:
    """What holds with this `oomdoctor.toml`."""
    Path("oomdoctor.toml").write_text(text)
    return configure_check(command_line or CheckKeys(), {}, config=None, defaults=DEFAULTS)


def names(configuration: CheckConfiguration, *chosen: str) -> list[str]:
    """Names of the entries that run."""
    return [entry.name for entry in chosen_entries(configuration, chosen)]


def test_every_key_reaches_its_place() -> None:
    """What an entry says is what the probe is asked, and what its answer is held to."""
    keys = (
        'gpu = "rtx-4090"\nmemory = "20GiB"\ntarget-batch = 256\nworld-size = 2\nprecision = "bf16"\n'
        'optimizer = "SGD"\nheadroom = "10%"\ntrial-timeout = 30\nmicro-batch = 4\nmin-micro-batch = 8\n'
        'max-accumulation-steps = 16\nmax-memory = "12GiB"\nbaseline = true\ntolerance = 0.05\n'
        'engine = "null"\nguide = false\ninputs = ["uv.lock", "data/**/*.json"]\n'
    )
    assert chosen_entries(configured(PRETRAIN + keys)) == (
        Entry(
            name="pretrain",
            request=ProbeRequest(
                target="train/model.py",
                directory=Path.cwd(),
                target_batch=256,
                world_size=2,
                variant=Variant(precision="bf16", optimizer="SGD"),
                headroom=0.1,
                gpu="rtx-4090",
                card_bytes=20 * GIB,
                trial_timeout_seconds=30.0,
                engine="null",
                guide=False,
                inputs=("uv.lock", "data/**/*.json"),
            ),
            micro_batch=4,
            min_micro_batch=8,
            max_accumulation_steps=16,
            max_memory_bytes=12 * GIB,
            headroom=0.1,
            baseline=True,
            tolerance=0.05,
        ),
    )


def test_a_local_gpu_is_chosen_by_its_index() -> None:
    """What chooses among the GPUs of this machine reaches the question, as its engine does."""
    (entry,) = chosen_entries(configured(PRETRAIN + 'target-batch = 8\ndevice = "1"\nengine = "cuda"\n'))
    assert (entry.request.device, entry.request.engine, entry.request.gpu) == ("1", "cuda", None)


def test_what_is_not_said_is_as_in_a_probe() -> None:
    """An entry with a target and a batch asks what `oomdoctor probe` would, and only that it fits."""
    request = ProbeRequest(target="train/model.py", directory=Path.cwd(), target_batch=8)
    assert chosen_entries(configured(PRETRAIN + "target-batch = 8")) == (Entry(name="pretrain", request=request),)


def test_each_card_is_an_entry() -> None:
    """Several cards make several entries, named after both; one card makes one, named after the entry."""
    found = chosen_entries(
        configured('target-batch = 8\ngpus = ["rtx-4090", "l40s"]\n' + PRETRAIN + TUNE + 'gpu = "t4"')
    )
    assert [(entry.name, entry.request.gpu) for entry in found] == [
        ("pretrain on rtx-4090", "rtx-4090"),
        ("pretrain on l40s", "l40s"),
        ("tune", "t4"),
    ]


def test_entries_are_chosen_by_either_name() -> None:
    """A name means the entry on all of its cards, or with its card behind it that one; the file's order stays."""
    found = configured('target-batch = 8\ngpus = ["rtx-4090", "l40s"]\n' + PRETRAIN + TUNE)
    every = ["pretrain on rtx-4090", "pretrain on l40s", "tune on rtx-4090", "tune on l40s"]
    assert names(found) == every
    assert names(found, "tune on l40s", "pretrain") == [*every[:2], "tune on l40s"]
    assert names(found, "tune", "tune on l40s", "tune") == every[2:]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pretain", "did you mean `pretrain`?"),
        ("tune on l40", "did you mean `tune on l40s`?"),
        ("xyz", "there are `pretrain`, `pretrain on t4`, `pretrain on l40s`, `tune`, `tune on t4`, `tune on l40s`"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    """Where nothing is near all names are listed."""
    found = configured('target-batch = 8\ngpus = ["t4", "l40s"]\n' + PRETRAIN + TUNE)
    with pytest.raises(UsageError) as caught:
        names(found, "tune", name)
    assert (caught.value.message, caught.value.hint) == (f"no entry of `oomdoctor.toml` is called `{name}`", hint)


def test_ranks_of_a_world_reach_the_probe() -> None:
    """A world, its mesh and the ranks that run alone are the question's; not all of them share a target batch."""
    keys = 'target-batch = 256\nmesh = "dp=32,tp=8"\nrank = "first,last"\nmin-micro-batch = 8\n'
    (entry,) = chosen_entries(configured(PRETRAIN + keys))
    assert (entry.request.world_size, entry.request.mesh, entry.request.ranks) == (1, "dp=32,tp=8", "first,last")
    (plain,) = chosen_entries(configured(PRETRAIN + 'world-size = 64\nparallel = "fsdp"\n'))
    assert (plain.request.world_size, plain.request.parallel, plain.request.target_batch) == (64, "fsdp", None)


def test_sizes_besides_the_batch_reach_the_probe() -> None:
    """Sizes hold for an entry; each combination of those with several values is an entry on each card."""
    keys = 'at = { side = 64 }\nover = { context = [256, 512], width = [8] }\ngpus = ["t4", "l4"]\n'
    found = configured(PRETRAIN + keys)
    every = [f"pretrain at context {context}, width 8 on {gpu}" for context in (256, 512) for gpu in ("t4", "l4")]
    assert (names(found), names(found, every[1])) == (every, every[1:2])
    entry = chosen_entries(found)[-1]
    assert entry.request.variant.axes == (Axis("context", 512), Axis("side", 64), Axis("width", 8))
    assert names(configured(PRETRAIN + "at = { side = 64 }\n")) == ["pretrain"]


def test_what_the_largest_and_buckets_have_no_use_for_is_passed_over_at_the_top() -> None:
    """A searched size and buckets reach the question, without the baseline and the sizes that the file's top asks."""
    text = f"""baseline = true
{PRETRAIN}largest = "side"
micro-batch = 8
multiple-of = 32
up-to = 4096
at-least = 512

[[check]]
name = "turns"
target = "train/model.py"
bucket-file = "buckets.json"
"""
    Path("buckets.json").write_text('[{"side": 64, "micro_batch": 8}, {"side": 32, "micro_batch": 30}]')
    largest, turns = chosen_entries(configured(text))

    assert largest.request.variant.searched == SearchedSize("side", 8, 32, 4096)
    assert (largest.at_least, largest.micro_batch, largest.baseline, largest.request.profiles) == (
        512,
        None,
        False,
        False,
    )
    assert turns.buckets == (Bucket((Axis("side", 64),), 8), Bucket((Axis("side", 32),), 30))
    assert (turns.baseline, turns.request.variant.searched) == (False, None)


def test_an_entry_that_evaluates_passes_over_training() -> None:
    """What the file says of all entries' training is none of its business; what the entry says so itself is refused."""
    shared = 'target-batch = 256\noptimizer = "SGD"\n'
    (entry,) = chosen_entries(configured(shared + PRETRAIN + 'mode = "eval"\nmin-micro-batch = 512\n'))
    assert (entry.request.variant.mode, entry.request.target_batch) == ("eval", None)
    assert (entry.request.variant.optimizer, entry.min_micro_batch) == (None, 512)
    with pytest.raises(UsageError) as caught:
        chosen_entries(configured(PRETRAIN + 'mode = "eval"\ntarget-batch = 8\n'))
    assert "`target-batch` of `pretrain`" in caught.value.message
    assert "is for training, and `mode` asks for `eval`" in caught.value.message


def test_generating_and_evaluating_between_steps_reach_the_probe() -> None:
    """An entry asks what the options of `probe` with the same names ask."""
    (entry,) = chosen_entries(configured(PRETRAIN + 'mode = "generate"\nprompt = 512\nnew-tokens = 64\n'))
    assert entry.request.variant.generation == Generation(512, 64)
    varied = 'mode = "generate"\nover = { prompt = [8, 16] }\nat = { new_tokens = 4 }\n'
    assert {
        entry.name: entry.request.variant.generation for entry in chosen_entries(configured(PRETRAIN + varied))
    } == {
        "pretrain at prompt 8": Generation(8, 4),
        "pretrain at prompt 16": Generation(16, 4),
    }
    (entry,) = chosen_entries(configured(PRETRAIN + "with-eval = true\neval-batch = 64\n"))
    assert entry.request.variant.evaluation == EvaluationBetween(64)


@pytest.mark.parametrize(
    ("lines", "key", "problem"),
    [
        ('mode = "generate"\n', "mode", '`mode = "generate"` needs `prompt`'),
        ('mode = "generate"\nprompt = 8\n', "mode", '`mode = "generate"` needs `new-tokens`'),
        ('mode = "generate"\nprompt = 8\nnew-tokens = 0\n', "mode", "`new-tokens` is 0"),
        ('mode = "generate"\nprompt = 8\nnew-tokens = 1\nat = { length = 8 }\n', "mode", "`length` is no size"),
        ("prompt = 8\n", "mode", '`prompt` is for `mode = "generate"`'),
        ("eval-batch = 8\n", "with-eval", "`eval-batch` is for `with-eval`, which is missing"),
        ("with-eval = true\neval-batch = 0\n", "with-eval", "`eval-batch` is 0"),
        ('mode = "eval"\nwith-eval = true\n', "with-eval", "is for training, and `mode` asks for `eval`"),
    ],
)
def test_what_does_not_go_with_a_mode_is_refused(lines: str, key: str, problem: str) -> None:
    """The message names the key, the entry and what is wrong."""
    with pytest.raises(UsageError) as caught:
        chosen_entries(configured(PRETRAIN + lines))
    assert f"`{key}` of `pretrain`" in caught.value.message
    assert problem in caught.value.message


def test_sizes_are_filled_in_where_a_command_has_them() -> None:
    """What a command's trials run, and its verification, has no placeholder left but those of the batch."""
    command = '[[check]]\nname = "own"\ncommand = ["python", "a.py", "{micro_batch}", "{accumulation_steps}"]\n'
    keys = 'set = ["a.py:LENGTH={length}"]\nover = { length = [8, 16] }\nverify = true\n'
    entries = chosen_entries(configured(command + keys))
    assert [entry.name for entry in entries] == ["own at length 8", "own at length 16"]
    assert [entry.request.literals[0].value for entry in entries] == ["8", "16"]
    placed = command.replace("a.py", "a{length}.py") + "over = { length = [8] }\nverify = true\n"
    (entry,) = chosen_entries(configured(placed))
    assert entry.verification is not None
    assert entry.request.command == entry.verification.command
    assert entry.request.command == ("python", "a8.py", "{micro_batch}", "{accumulation_steps}")


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        (
            'largest = "side"',
            '`largest` of `pretrain` in `oomdoctor.toml` is wrong: `largest = "side"` needs a micro-batch',
            "as in `micro-batch = 8`",
        ),
        (
            'largest = "side"\nmicro-batch = 8\nbaseline = true',
            "`baseline` of `pretrain` in `oomdoctor.toml` is about micro-batches, and `largest` searches `side`",
            "drop one of the two",
        ),
        (
            'largest = "side"\nmicro-batch = 8\nat = { side = 8 }',
            "`largest` of `pretrain` in `oomdoctor.toml` searches `side`, and `at` or `over` gives it",
            "drop one of the two",
        ),
        (
            'largest = "side"\nmicro-batch = 8\nat-least = 64\nup-to = 32',
            "`at-least` of `pretrain` in `oomdoctor.toml` is 64, and nothing above `up-to = 32` is tried",
            "",
        ),
        (
            'gpu = "rtx 9999"',
            "`gpu` of `pretrain` in `oomdoctor.toml` is wrong: no GPU called `rtx 9999` is known",
            '`memory = "24GiB"` needs no name',
        ),
        ("at-least = 8", "`at-least` of `pretrain` in `oomdoctor.toml` is for `largest`", "`min-micro-batch`"),
        ("up-to = 8", "`up-to` of `pretrain` in `oomdoctor.toml` is wrong: `up-to` is for `largest`", "drop this"),
        ("buckets = []", "`buckets` of `pretrain` in `oomdoctor.toml` is wrong", "micro-batch = 32 }`"),
        (
            "buckets = [{ side = 8 }]",
            "`buckets` of `pretrain` in `oomdoctor.toml` is wrong: `buckets` has a bucket with no micro-batch",
            "micro-batch = 32 }`",
        ),
        (
            "buckets = [{ side = 8, micro-batch = 0 }]",
            "`buckets` of `pretrain` in `oomdoctor.toml` is wrong: in `buckets`, `micro-batch` is 0",
            "micro-batch = 32 }`",
        ),
        (
            "buckets = [{ side = 8, micro-batch = 1048577 }]",
            "`buckets` of `pretrain` in `oomdoctor.toml` is wrong: in `buckets`, `micro-batch` is 1048577, and nothing",
            "micro-batch = 32 }`",
        ),
        (
            'largest = "side"\nmicro-batch = 9\ntarget-batch = 8',
            "`micro-batch` of `pretrain` in `oomdoctor.toml` is 9, and `target-batch` gives each device only 8",
            "",
        ),
        (
            "buckets = [{ side = 8, micro-batch = 1 }, { side = 8, micro-batch = 2 }]",
            "`buckets` of `pretrain` in `oomdoctor.toml` is wrong: `buckets` has two buckets of side 8",
            "keep one",
        ),
        (
            "buckets = [{ side = 8, micro-batch = 1 }, { wide = 8, micro-batch = 2 }]",
            "`buckets` of `pretrain` in `oomdoctor.toml` is wrong: `buckets` has buckets of different sizes",
            "name the same in each",
        ),
        (
            "buckets = [{ side = 8, micro-batch = 1 }]\nat = { side = 8 }",
            "`buckets` of `pretrain` in `oomdoctor.toml` has sizes of `side`, and `at` has one",
            "drop one of the two",
        ),
        (
            "buckets = [{ side = 8, micro-batch = 1 }]\nmin-micro-batch = 8",
            "`min-micro-batch` of `pretrain` in `oomdoctor.toml` says nothing of buckets",
            "drop one of the two",
        ),
        (
            'bucket-file = "gone.json"',
            "`bucket-file` of `pretrain` in `oomdoctor.toml` names `",
            "`oomdoctor probe TARGET",
        ),
        (
            'bucket-file = "oomdoctor.toml"',
            "`bucket-file` of `pretrain` in `oomdoctor.toml` names `",
            "`oomdoctor probe TARGET",
        ),
        (
            "min-samples-per-second = 0",
            "`min-samples-per-second` of `pretrain` in `oomdoctor.toml` is 0, not above 0",
            "",
        ),
        (
            'mode = "eval"\nfastest = true',
            "`fastest` of `pretrain` in `oomdoctor.toml` is for training, and `mode` asks for `eval`",
            "drop one of the two",
        ),
        (
            "at = { side = 0 }",
            "`at` of `pretrain` in `oomdoctor.toml` is wrong: `at side=0` gives no whole number above 0",
            "give a size of 1 or more",
        ),
        ("at = { side = 'a' }", '`check.pretrain.at.side` in `oomdoctor.toml` is `"a"`, not an integer', "= 512 }"),
        (
            "over = { side = [] }",
            "`over` of `pretrain` in `oomdoctor.toml` is wrong: `over` gives `side` no value",
            "as in `side=256,512`",
        ),
        (
            "at = { side = 1 }\nover = { side = [2] }",
            "`over` of `pretrain` in `oomdoctor.toml` has values of `side`, and `at` has one",
            "drop one of the two",
        ),
        (
            'target-batch = 256\nmesh = "dp=32,tp=8"\nmin-micro-batch = 9',
            "`min-micro-batch` of `pretrain` in `oomdoctor.toml` is 9, and `target-batch` gives each device only 8",
            "",
        ),
        (
            'world-size = 8\nmesh = "dp=32,tp=8"',
            "`mesh` of `pretrain` in `oomdoctor.toml` is wrong: `--mesh dp=32,tp=8` has 256 ranks",
            "the mesh says it",
        ),
        ('world-size = 8\nrank = "8"', "`rank` of `pretrain` in `oomdoctor.toml` is wrong: ", ""),
        ("world-size = 2", "`world-size` of `pretrain` in `oomdoctor.toml` is about a target", "asks about ranks"),
        ("world-size = 2", "`world-size` of `pretrain` in `oomdoctor.toml` is about a target", "`target-batch = 256`"),
        ("max-accumulation-steps = 2", "`max-accumulation-steps` of `pretrain` in `oomdoctor.toml` is", "drop it"),
        (
            "min-micro-batch = 2_000_000",
            "`min-micro-batch` of `pretrain` in `oomdoctor.toml` is 2000000, and no micro-batch above 1048576 is tried",
            "",
        ),
        ("target-batch = 0", "`target-batch` of `pretrain` in `oomdoctor.toml` is 0, not 1 or more", ""),
        (
            "target-batch = 100\nworld-size = 8",
            "`target-batch` of `pretrain` in `oomdoctor.toml` is wrong: target batch 100 does not divide by",
            "96 or 104",
        ),
        (
            "target-batch = 8\nworld-size = 2\nmin-micro-batch = 5",
            "`min-micro-batch` of `pretrain` in `oomdoctor.toml` is 5, and `target-batch` gives each device only 4",
            "",
        ),
        (
            'target-batch = 8\ngpu = "rtx-4091"',
            "`gpu` of `pretrain` in `oomdoctor.toml` is wrong: no GPU called `rtx-4091` is known",
            "did you mean `rtx-4090`",
        ),
        (
            'target-batch = 8\ngpus = ["t4", "3080"]',
            "`gpus` of `pretrain` in `oomdoctor.toml` is wrong: `3080` may be any of",
            "name one of",
        ),
        ("target-batch = 8\ngpus = []", "`gpus` of `pretrain` in `oomdoctor.toml` names no card", "leave it out"),
        (
            'target-batch = 8\ngpus = ["t4", "t4"]',
            "2 entries of `oomdoctor.toml` are called `pretrain on t4`",
            "name each card once",
        ),
        (
            'target-batch = 8\nmemory = "24"',
            "`memory` of `pretrain` in `oomdoctor.toml` is wrong: `24` has no unit",
            "did you mean `24GiB`?",
        ),
        (
            "target-batch = 8\nheadroom = 5",
            "`headroom` of `pretrain` in `oomdoctor.toml` is wrong: `5` is not below 1",
            "did you mean `5%`?",
        ),
        ("target-batch = 8\nheadroom = nan", "`headroom` of `pretrain` in `oomdoctor.toml` is wrong: `nan`", ""),
        (
            'target-batch = 8\ntolerance = "-1%"',
            "`tolerance` of `pretrain` in `oomdoctor.toml` is wrong: `-1%` is negative",
            "",
        ),
        (
            "target-batch = 8\ntrial-timeout = inf",
            "`trial-timeout` of `pretrain` in `oomdoctor.toml` is inf, not from 1 to 604800 seconds",
            "",
        ),
        (
            'target-batch = 8\ndevice = "1"\ngpu = "t4"',
            "`device` of `pretrain` in `oomdoctor.toml` chooses a GPU of this machine, and `gpu` a card to play",
            "drop one",
        ),
        (
            'target-batch = 8\ninputs = ["../other.json"]',
            "`inputs` of `pretrain` in `oomdoctor.toml` has a pattern outside the folder of the configuration",
            "name files below it",
        ),
        (
            'target-batch = 8\nmax-memory = "8GiB"\nbaseline = true',
            "`max-memory` of `pretrain` in `oomdoctor.toml` does not say at which size",
            "add `micro-batch = 8`",
        ),
    ],
)
def test_what_cannot_be_is_named(keys: str, message: str, hint: str) -> None:
    """The message has the file, the entry and the key, also where another entry was asked for."""
    with pytest.raises(UsageError) as caught:
        names(configured(f"{PRETRAIN}{keys}\n{TUNE}target-batch = 8"), "tune")
    assert caught.value.message.startswith(message)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "command_line", "place"),
    [
        ('memory = "24"\n' + PRETRAIN, CheckKeys(), "`memory` at the top of oomdoctor.toml"),
        (PRETRAIN, CheckKeys(memory="24"), "`--memory`"),
    ],
)
def test_a_wrong_value_is_placed_where_it_came_from(text: str, command_line: CheckKeys, place: str) -> None:
    """A value that did not come from the entry is said to be where it was given."""
    with pytest.raises(UsageError) as caught:
        chosen_entries(configured(f"{text}target-batch = 8", command_line))
    assert caught.value.message == f"{place} is wrong: `24` has no unit"


def test_a_tiny_share_is_a_number() -> None:
    """A share that is written with an exponent is as good as any."""
    (entry,) = chosen_entries(configured(PRETRAIN + "target-batch = 8\ntolerance = 1e-5\nheadroom = 0\n"))
    assert (entry.tolerance, entry.headroom, entry.request.headroom) == (1e-5, 0.0, 0.0)


def test_the_command_lines_memory_replaces_a_capacity() -> None:
    """Memory and capacity exclude each other in one place; a stronger one replaces a weaker one of the other kind."""
    keys = 'target-batch = 8\ncapacity = "2GiB"\n'

    (entry,) = chosen_entries(configured(PRETRAIN + keys, CheckKeys(memory="4GiB")))
    assert (entry.request.card_bytes, entry.request.memory_bytes) == (4 * GIB, None)

    with pytest.raises(UsageError, match="`capacity` of `pretrain`"):
        chosen_entries(configured(PRETRAIN + keys + 'memory = "4GiB"\n'))
