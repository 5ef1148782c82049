"""Launchers of ranks: what torchrun, accelerate and deepspeed would start, as one process for each rank.

Options are those of PyTorch 2.15 and DeepSpeed 0.17. What accelerate makes of its options and its configuration file it
is asked itself, since that is much; it is stopped where it would start the ranks.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.shard_sizes import file_of
from oomdoctor.errors import UsageError
from oomdoctor.run.environment import find_interpreter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from oomdoctor.results import LoneRank


_TORCH, _OLD_TORCH, _ACCELERATE, _DEEPSPEED = "torchrun", "torch.distributed.launch", "accelerate", "deepspeed"
_PROGRAMS: Final = {"torchrun": _TORCH, "accelerate-launch": _ACCELERATE, "deepspeed": _DEEPSPEED}
_MODULES: Final = {
    "torch.distributed.run": _TORCH,
    "torch.distributed.launch": _OLD_TORCH,
    "accelerate.commands.launch": _ACCELERATE,
    "deepspeed.launcher.runner": _DEEPSPEED,
}
_TORCH_FLAGS: Final = frozenset(
    ("standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env", "h", "help")
)
_DEEPSPEED_FLAGS: Final = frozenset(
    ("module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "save_pid", "elastic_training",
     "bind_cores_to_rank", "h", "help")
)  # fmt: skip
_PROCESSES_A_NODE: Final = 8
_SECONDS: Final = 120
_ASK_ACCELERATE: Final = """
import json, os, sys
import accelerate.commands.launch as launch
import torch.distributed.run as run
before = dict(os.environ)
def told(a):
    made = {k: v for k, v in os.environ.items() if before.get(k) != v}
    words = [a.training_script, *a.training_script_args]
    nodes = int(str(a.nnodes or 1).split(":")[-1])
    flags = [bool(a.module), bool(a.no_python)]
    print("\\n" + json.dumps([int(a.nproc_per_node), nodes, *flags, words, made]), flush=True)
    os._exit(0)
def refused(*_, **__):
    sys.exit("it would start a single process: give `--multi_gpu`, or a configuration that has several")
run.run = told
launch.simple_launcher = launch.sagemaker_launcher = launch.tpu_launcher = launch.tpu_pod_launcher = refused
parser = launch.launch_command_parser()
args = parser.parse_args()
launch.launch_command(args)
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launcher's command, taken apart.

    Attributes:
        launcher: The launcher's name.
        processes: Ranks that it starts itself.
        local_world_size: Ranks on each machine, where it says so.
        words: Words that start one rank.
        local_rank_at: Where the option `--local_rank=N` goes in `words`; None where the launcher gives none.
        environment: Variables that it sets, besides those of ranks.
    """

    launcher: str
    processes: int
    local_world_size: int | None
    words: tuple[str, ...]
    local_rank_at: int | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def ranks_on_each_node(self, world_size: int) -> int:
        """Return how many ranks of a world share a machine."""
        return min(self.local_world_size or _PROCESSES_A_NODE, world_size)

    def command(self, local_rank: int) -> tuple[str, ...]:
        """Return the words that start the rank of this number on its machine."""
        if self.local_rank_at is None:
            return self.words
        option = "--local-rank" if self.launcher == _OLD_TORCH else "--local_rank"
        return (*self.words[: self.local_rank_at], f"{option}={local_rank}", *self.words[self.local_rank_at :])

    def variables(self, rank: int, world_size: int) -> dict[str, str]:
        """Return the variables that the launcher sets for a rank.

        Raises:
            UsageError: The world is not divided by the ranks of a machine.
        """
        local = self.ranks_on_each_node(world_size)
        if world_size % local:
            raise UsageError(
                f"world size {world_size} is not a multiple of the {local} ranks of each machine",
                hint="say with the launcher's own option, such as `--nproc-per-node`, how many a machine has",
            )
        nodes, node = world_size // local, rank // local
        own = {"RANK": rank, "LOCAL_RANK": rank % local, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": local}
        if self.launcher == _DEEPSPEED:
            own |= {"CROSS_RANK": node, "CROSS_SIZE": nodes, "LOCAL_SIZE": local}
        else:
            own |= {"GROUP_RANK": node, "GROUP_WORLD_SIZE": nodes, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": world_size}
            own |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "OMP_NUM_THREADS": 1}
        texts = {name: str(value) for name, value in own.items()}
        named = {"ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "none"} if self.launcher != _DEEPSPEED else {}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        return {**texts, **named, **meeting, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **self.environment}


def lone_variables(alone: LoneRank) -> dict[str, str]:
    """Return the variables of a rank that nothing launches, on a machine of its own."""
    numbers = {"RANK": alone.rank, "WORLD_SIZE": alone.world_size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return {name: str(number) for name, number in numbers.items()} | meeting


def read_launch(command: Sequence[str], environment: Mapping[str, str]) -> Launch | None:
    """Take a launcher's command apart; None where it begins with none.

    Args:
        command: Its words; `env NAME=VALUE` or `uv run` may come before.
        environment: Its environment.

    Raises:
        UsageError: The launcher cannot say what it would start.
    """
    found = _find(command)
    if found is None:
        return None
    name, start, end = found
    python = [find_interpreter(command, environment) or "python"]
    if command[start] == "-m":
        python = []  # the Python before it stays, with its own options
    before, arguments = [*command[:start], *python], list(command[end:])
    if name == _ACCELERATE:
        return _ask_accelerate(before, arguments, environment)
    options, rest = _split(arguments, _DEEPSPEED_FLAGS if name == _DEEPSPEED else _TORCH_FLAGS)
    if not rest:
        raise UsageError(f"`{command[start]}` names no program to launch", hint="add the script: `torchrun train.py`")
    starts_python = not options.keys() & {"no_python"}
    is_module = bool(options.keys() & {"m", "module"})
    words = (*(before if starts_python else before[: -len(python)] if python else before[:-1]),)
    words = (*words, *(("-u",) if starts_python else ()), *(("-m",) if is_module else ()), *rest)
    takes_local_rank = (name == _DEEPSPEED and "no_local_rank" not in options) or (
        name == _OLD_TORCH and "use_env" not in options
    )
    local, nodes = _counts(options, name)
    return Launch(name, (local or 1) * nodes, local, words, len(words) - len(rest) + 1 if takes_local_rank else None)


def launch_alone(
    command: Sequence[str], world_size: int | None, ranks: str | None, environment: Mapping[str, str]
) -> Launch | None:
    """Return the launcher of a command whose ranks run alone; None where all processes run.

    Ranks run alone where the launcher starts fewer than the world has, or where somebody asks about some of them.

    Args:
        command: Its words.
        world_size: Ranks of the world; None where nobody said so.
        ranks: Ranks that are asked about, or their mesh, as given.
        environment: Its environment.

    Raises:
        UsageError: Ranks are named, and the world is not, or nothing launches them.
    """
    launch = read_launch(command, environment) if world_size is not None and world_size > 1 else None
    if launch is not None and world_size is not None and (world_size > launch.processes or ranks is not None):
        return launch
    if ranks is not None:
        raise UsageError(
            "`--rank` and `--mesh` are of ranks that run alone, and here no launcher starts ranks of a world",
            hint="give the world with it: `--world-size 64 --rank 0,last -- torchrun --nproc-per-node 8 train.py`",
        )
    return None


def _find(command: Sequence[str]) -> tuple[str, int, int] | None:
    """Return the launcher, the index of its first word, and that of its first argument."""
    for index, word in enumerate(command):
        program = Path(word).name
        if program in _PROGRAMS:
            return _PROGRAMS[program], index, index + 1
        if program == "accelerate" and list(command[index + 1 : index + 2]) == ["launch"]:
            return _ACCELERATE, index, index + 2
        module = "".join(command[index + 1 : index + 2])
        if word == "-m" and module in _MODULES:
            return _MODULES[module], index, index + 2
        if word == "-m" or word.endswith(".py"):
            return None
    return None


def _split(arguments: Sequence[str], flags: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return a launcher's options, with `_` for `-`, and the words from the program on."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, has_value, value = rest.pop(0).partition("=")
        name = name.lstrip("-").replace("-", "_")
        if not has_value and name not in flags and rest:
            value = rest.pop(0)
        options[name] = value
    return options, rest[1:] if rest[:1] == ["--"] else rest


def _counts(options: Mapping[str, str], name: str) -> tuple[int | None, int]:
    """Return the ranks that are started on a machine, None where no number says so, and the machines."""
    a_node, nodes = ("num_gpus", "num_nodes") if name == _DEEPSPEED else ("nproc_per_node", "nnodes")
    local, machines = (
        next((value for option, value in options.items() if option == wanted or wanted.startswith(f"{option}_")), "")
        for wanted in (a_node, nodes)
    )
    last = machines.rpartition(":")[2]
    return int(local) if local.isdigit() else None, int(last) if last.isdigit() and int(last) > 0 else 1


def _ask_accelerate(before: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """Ask accelerate, in the command's own Python, what it would start and with which variables.

    Raises:
        UsageError: It refuses its options, or does not get as far as starting ranks.
    """
    several = _with_several(arguments)
    done = subprocess.run(
        [*before, "-c", _ASK_ACCELERATE, *several], env=dict(environment), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace",
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode != os.EX_OK or not lines:
        said = done.stderr.strip().splitlines()
        raise UsageError(
            f"`accelerate launch` would start no ranks: {said[-1] if said else 'it ended without them'}",
            hint="run the script by `torchrun` instead",
        )
    local, nodes, is_module, has_no_python, rest, made = json.loads(lines[-1])
    words = (*(before[:-1] if has_no_python else (*before, "-u")), *(("-m",) if is_module else ()), *rest)
    is_own = "--num_processes" in several[: len(several) - len(arguments)]
    return Launch(_ACCELERATE, 1 if is_own else local * nodes, None if is_own else local, words, None, made)


def _with_several(arguments: Sequence[str]) -> list[str]:
    """Have accelerate start several ranks, which it does only for GPUs that it finds, or where it is told to."""
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in arguments}
    if given & {"config_file", "multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"}:
        return list(arguments)
    count = [] if "num_processes" in given else ["--num_processes", str(_PROCESSES_A_NODE)]
    return ["--multi_gpu", *count, *arguments]


FIRST, LAST, DISTINCT = "first", "last", "all-distinct"
DATA_DIMENSIONS: Final = ("dp", "data", "fsdp", "shard", "replicate", "ep")
MODEL_DIMENSIONS: Final = ("tp", "tensor", "cp", "context", "sp", "sequence")
PIPELINE_DIMENSIONS: Final = ("pp", "pipeline")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Dimensions of a world's device mesh, outermost first.

    Attributes:
        sizes: Ranks along each, by name.
    """

    sizes: dict[str, int]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes.values())

    @property
    def data_parallel(self) -> int:
        """Number of ranks that share the target batch: those that take samples of their own."""
        return math.prod(size for name, size in self.sizes.items() if _kind(name) in DATA_DIMENSIONS)

    @property
    def pipeline_ranks(self) -> set[int]:
        """The first rank of each pipeline stage."""
        names = list(self.sizes)
        for index, name in enumerate(names):
            if _kind(name) in PIPELINE_DIMENSIONS:
                stride = math.prod(self.sizes[inner] for inner in names[index + 1 :])
                return {stage * stride for stage in range(self.sizes[name])}
        return set()


def parse_mesh(text: str, option: str = "mesh") -> Mesh:
    """Read dimensions such as `dp=8,tp=4`.

    Args:
        text: Names and sizes, outermost first.
        option: What the user calls it.

    Raises:
        UsageError: It is none, or a name says nothing of what is divided along it.
    """
    known = (*DATA_DIMENSIONS, *MODEL_DIMENSIONS, *PIPELINE_DIMENSIONS)
    sizes: dict[str, int] = {}
    for word in text.split(","):
        name, _, size = word.strip().partition("=")
        if _kind(name) not in known or not size.isdigit() or int(size) < 1 or name in sizes:
            raise UsageError(
                f"`{option} {text}` is no mesh: `{word.strip()}`",
                hint=f"give each dimension once and outermost first, as in `dp=8,tp=4`; names: {', '.join(known)}",
            )
        sizes[name] = int(size)
    return Mesh(sizes)


def _kind(name: str) -> str:
    """Return what a dimension's name begins with, as `dp` of `dp_shard`."""
    return name.partition("_")[0]


def parse_ranks(
    text: str | None, world_size: int, option: str = "rank", distinct: Iterable[int] = ()
) -> tuple[int, ...]:
    """Return the ranks that are asked about, in ascending order: numbers, `first`, `last` and `all-distinct`.

    Args:
        text: Such as `0,last`; None for `all-distinct`, which is the first and the last.
        world_size: Number of ranks.
        option: What the user calls it.
        distinct: Ranks that `all-distinct` stands for besides.

    Raises:
        UsageError: It is none of these, or the world has no such rank.
    """
    words = {FIRST: {0}, LAST: {world_size - 1}, DISTINCT: {0, world_size - 1, *distinct}}
    found: set[int] = set()
    for word in (text or DISTINCT).split(","):
        name = word.strip()
        if not name.isdigit() and name not in words:
            raise UsageError(
                f"`{option} {text}` names no ranks", hint="give numbers, `first`, `last` or `all-distinct`: `0,last`"
            )
        found |= words.get(name) or {int(name)}
    outside = [rank for rank in sorted(found) if rank >= world_size]
    if outside:
        raise UsageError(
            f"a world of {world_size} has no rank {outside[0]}", hint=f"its ranks are 0 to {world_size - 1}"
        )
    return tuple(sorted(found))


_MOST_SIZES: Final = 8
"""Ranks of other sizes that a rank's findings add; those with the largest parts come first."""


def ranks_left(text: str | None, named: Iterable[int], done: Collection[int], folder: str) -> list[int]:
    """Return the ranks still to run: those that are named, and of each shard size one that those before found.

    Args:
        text: What the user named; None for `all-distinct`.
        named: The ranks of that.
        done: Ranks that ran.
        folder: Where ranks leave what they find; the user's code could write there too.
    """
    found = set(named)
    if text is None or DISTINCT in text:
        for rank in done:
            found |= {other for other in _read_ranks(file_of(folder, rank)) if isinstance(other, int) and other >= 0}
    return sorted(found - set(done))


def _read_ranks(path: Path) -> list[object]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return told[:_MOST_SIZES] if isinstance(told, list) else []
