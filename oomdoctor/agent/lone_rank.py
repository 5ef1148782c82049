"""Lone rank: one rank of a world whose other ranks do not run, on a null GPU.

PyTorch's own ProcessGroupNCCL runs on the null GPU's NCCL, which waits for nobody. What ranks say to each other besides
goes through a store, and this store answers for those that are absent: a barrier is passed, and a communicator's id is
any. An object that is gathered from all ranks is this rank's own, repeated; one that another rank gives is known where
that rank has run before and left it in the folder `OOMDOCTOR_LONE_OBJECTS`, and else refused, with the place that asks
for it. So is all that a rank cannot do alone. Groups on the CPU keep this rank's own values.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import inspect
import json
import os
import re
import sys
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import imports, known_values
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_ID_BYTES = 128
_COMMUNICATOR = re.compile(r".*/cuda/(.*[/_])?\d+(:\d+)?")
"""Keys under which NCCL's groups look for a communicator's id: a number, in later releases with a word before it, or
the two ranks of a pair."""
_OWN_FOLDER = str(Path(__file__).resolve().parent)


class LoneRankError(RuntimeError):
    """A rank that runs alone cannot do this."""


def is_lone() -> bool:
    """Return whether this process is a rank that runs alone."""
    return "OOMDOCTOR_LONE_OBJECTS" in os.environ


def refuse(what: str, hint: str) -> LoneRankError:
    """Return the error that refuses what a rank alone cannot do, with the place in the program that asks for it."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return LoneRankError(
        f"rank {rank} runs alone, without the other ranks of its world of {world}, and {what}{_place()}; {hint}"
    )


def _place() -> str:
    """Return where the program is, outside of torch and of this."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_OWN_FOLDER) and "/torch/" not in frame.filename:
            return f" (in {frame.filename}, line {frame.lineno})"
    return ""


def refuse_launches() -> None:
    """Refuse what starts or calls other ranks, once it is imported."""
    imports.when_imported("torch.multiprocessing.spawn", guarded(_refuse_spawn))
    imports.when_imported("torch.distributed.rpc", guarded(_refuse_rpc))


# --- the store -------------------------------------------------------------------------------------------------------


class _LoneStore:
    """A store that has what this rank sets, and answers for what the others would have set; the half in Python."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._timeout = dt.timedelta(minutes=30)

    def set(self, key: str, value: Any) -> None:
        self._values[key] = _as_bytes(value)

    def get(self, key: str) -> bytes:
        if key in self._values:
            return self._values[key]
        if _COMMUNICATOR.fullmatch(key):
            return bytes(_ID_BYTES)
        raise refuse(f"waits for the key {key!r} of the store, which another rank would set", "set it on this rank")

    def add(self, key: str, amount: int) -> int:
        value = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(value).encode()
        return value

    def check(self, keys: Any) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: Any, timeout: Any = None) -> None:
        """Return at once: all the others are taken to have come."""

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        if self._values.get(key, b"") == _as_bytes(expected):
            self._values[key] = _as_bytes(desired)
        return self._values.get(key, _as_bytes(expected))

    def set_timeout(self, timeout: dt.timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> dt.timedelta:
        return self._timeout

    def clone(self) -> Any:
        return self

    def has_extended_api(self) -> bool:
        return True

    def append(self, key: str, value: Any) -> None:
        self._values[key] = self._values.get(key, b"") + _as_bytes(value)

    def multi_get(self, keys: Any) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Any, values: Any) -> None:
        for key, value in dict(zip(keys, values)).items():  # noqa: B905 - Python 3.8 has no `strict`
            self.set(key, value)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


_stores: list[Any] = []
"""The process's store: a group holds the C++ half alone, and there is one store however often it is asked for."""


def _store() -> Any:
    if not _stores:
        kind: Any = type("LoneStore", (_LoneStore, sys.modules["torch.distributed"].Store), {})
        _stores.append(kind())
    return _stores[0]


# --- torch.distributed -----------------------------------------------------------------------------------------------


def patch_c10d(c10d: Any) -> None:
    """Let the process groups of a program meet in the store that answers for the absent ranks.

    Args:
        c10d: The module `torch.distributed.distributed_c10d`, just imported.
    """
    distributed: Any = sys.modules["torch.distributed"]
    c10d.rendezvous = _rendezvous
    for module in (distributed, c10d):
        for name in ("TCPStore", "FileStore"):
            if hasattr(module, name):
                setattr(module, name, _only_store)
    init = c10d.init_process_group

    @functools.wraps(init)
    def init_process_group(backend: Any = None, *arguments: Any, **named: Any) -> Any:
        names = {part.rpartition(":")[2] for part in str(backend or "nccl").lower().split(",")}
        if "nccl" not in names and "undefined" not in names:
            raise refuse(
                f"its process group is `{backend}`, whose ranks talk through the CPU",
                "use `nccl`, or run all ranks and drop `--world-size`",
            )
        return init(backend, *arguments, **named)

    c10d.init_process_group = distributed.init_process_group = init_process_group
    if hasattr(c10d, "ProcessGroupGloo"):
        c10d.ProcessGroupGloo = _alone_on_cpu(c10d.ProcessGroupGloo)


def _only_store(*_arguments: Any, **_named: Any) -> Any:
    """Stand for the stores that ranks meet in."""
    return _store()


def _rendezvous(_url: str, rank: int = -1, world_size: int = -1, **_named: Any) -> Any:
    """Yield the store, the rank and the world size, as torch's own function does after the ranks have met."""
    environment = os.environ
    own_rank = rank if rank >= 0 else int(environment["RANK"])
    yield _store(), own_rank, world_size if world_size > 0 else int(environment["WORLD_SIZE"])


def _alone_on_cpu(gloo: Any) -> Any:
    """Return what stands for the class of groups on the CPU: PyTorch's group that leaves each value as it is."""
    fake: Any = sys.modules["torch._C._distributed_c10d"].FakeProcessGroup

    class _Meta(type):
        def __instancecheck__(cls, group: Any) -> bool:
            return isinstance(group, (gloo, fake))

        def __getattr__(cls, name: str) -> Any:
            return getattr(gloo, name)

    class ProcessGroupGloo(metaclass=_Meta):
        def __new__(cls, _store: Any, rank: int, size: int, *_arguments: Any, **_named: Any) -> Any:
            return getattr(fake, "_create_internal", fake)(rank, size)

    return ProcessGroupGloo


# --- values on which ranks agree -------------------------------------------------------------------------------------

_MOST_BYTES = 1 << 12
"""Size of a tensor up to which its values are such as ranks vote by, or compare their lengths by."""


def agreed_values(c10d: Any) -> dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return replacements of functions after which a tensor of known integers holds what all ranks would agree on.

    All ranks are taken to vote as this one does; a sum is this rank's value times their number. What this rank
    broadcasts stays; what another one does is known where that rank has run before.
    """
    return {
        "all_reduce": lambda original: _after(original, lambda given: _reduced(c10d, given)),
        "broadcast": lambda original: _after(original, lambda given: _broadcast(c10d, given)),
    }


def _after(original: Callable[..., Any], change: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a function that gives its tensor values again, which the collective itself makes unknown."""
    signature = inspect.signature(original)

    def collective(*arguments: Any, **named: Any) -> Any:
        storage = values = None
        with suppress(Exception):  # wrong arguments are the original's to refuse
            given = signature.bind(*arguments, **named)
            given.apply_defaults()
            values = _agreed(given.arguments, change)
            storage = given.arguments["tensor"].untyped_storage()
        work = original(*arguments, **named)
        if storage is not None and values is not None:
            setattr(storage, known_values.VALUES, values)
        return work

    return collective


def _agreed(given: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the bytes of a tensor's storage after a collective; None where they are not known."""
    tensor = given["tensor"]
    values = known_values.host_values(tensor) if tensor.is_cuda else None
    if values is None or tensor.untyped_storage().nbytes() > _MOST_BYTES:
        return None
    changed = change({**given, "values": values.clone()})
    if changed is None:
        return None
    flat = getattr(tensor.untyped_storage(), known_values.VALUES).clone()
    flat.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(changed)
    return flat


def _reduced(c10d: Any, given: dict[str, Any]) -> Any:
    group = given.get("group") or c10d._get_default_group()  # noqa: SLF001
    kinds = c10d.ReduceOp
    if given["op"] == kinds.SUM:
        return given["values"] * group.size()
    return given["values"] if any(given["op"] == kind for kind in (kinds.MIN, kinds.MAX, kinds.AVG)) else None


def _broadcast(c10d: Any, given: dict[str, Any]) -> Any:
    group = given.get("group") or c10d._get_default_group()  # noqa: SLF001
    source = given.get("group_src")
    source = c10d.get_group_rank(group, given.get("src") or 0) if source is None else source
    ranks = ",".join(map(str, c10d.get_process_group_ranks(group)))
    _broadcasts[ranks] += 1
    exchange = LoneExchange(f"{ranks}/values/{_broadcasts[ranks]}", group.rank(), group.size(), is_gather=False)
    if source == group.rank():
        exchange.give("values", json.dumps(given["values"].tolist()).encode())
        return given["values"]
    left = exchange.left("values")
    return None if left is None else given["values"].new_tensor(json.loads(left))


_broadcasts: Counter[str] = Counter()


# --- objects ---------------------------------------------------------------------------------------------------------


class LoneExchange:
    """One exchange of objects, or one barrier, of a group of which this rank alone runs.

    Args:
        name: The exchange, the same on all ranks of the group.
        rank: This rank's number in the group.
        size: Number of ranks in the group.
        is_gather: Whether each rank gives an object of the same kind.
    """

    def __init__(self, name: str, rank: int, size: int, *, is_gather: bool) -> None:
        self.rank = rank
        self.size = size
        self._name = name
        self._is_gather = is_gather
        self._given: dict[str, bytes] = {}

    def give(self, name: str, data: bytes) -> None:
        """Keep an object, and leave it for the ranks that run later."""
        self._given[name] = data
        if not self._is_gather:
            place = self._file(name)
            if place.parent.is_dir():
                place.write_bytes(data)

    def take(self, name: str, readers: int) -> bytes:  # noqa: ARG002 - as of an exchange through a store
        """Return the object of this rank, where it gave one, or what a rank left that ran before.

        Raises:
            LoneRankError: Nobody did.
        """
        if name in self._given:
            return self._given[name]
        if self._is_gather and self._given:
            return next(iter(self._given.values()))
        left = self.left(name)
        if left is not None:
            return left
        raise refuse("waits for an object of another rank", _hint_for_objects())

    def left(self, name: str) -> bytes | None:
        """Return what a rank left that ran before; None where none did."""
        return self._file(name).read_bytes() if self._file(name).is_file() else None

    def wait_for_all(self) -> None:
        """Pass: nobody else comes."""

    def _file(self, name: str) -> Path:
        key = hashlib.sha256(f"{self._name}/{name}".encode()).hexdigest()[:32]
        return Path(os.environ["OOMDOCTOR_LONE_OBJECTS"]) / key


def _hint_for_objects() -> str:
    """Return what helps where an object is waited for: of a pipeline, the shapes that its stages ask each other for."""
    if any("/distributed/pipelining/" in frame.filename for frame in traceback.extract_stack()):
        return "give `PipelineStage` its `input_args` and `output_args` on `meta`, so that no stage asks for them"
    return "ask about that rank too, which then runs first: `--rank first,last`"


def write_peaks(peaks: Any, communicators: Any) -> None:
    """Leave the peaks of this rank, by device, beside its objects for `oomdoctor run`, as it ends."""
    told = {
        "peak_allocated_bytes": max((device.allocated_bytes for device in peaks), default=0),
        "peak_reserved_bytes": max((device.reserved_bytes for device in peaks), default=0),
        "communicators": list(communicators),
    }
    path = Path(os.environ["OOMDOCTOR_LONE_OBJECTS"]) / f"peaks-{os.environ['RANK']}.json"
    path.write_text(json.dumps(told), encoding="utf-8")


def _refuse_call(what: str, hint: str) -> Callable[..., Any]:
    def refused(*_arguments: Any, **_named: Any) -> Any:
        raise refuse(what, hint)

    return refused


def _refuse_spawn() -> None:
    hint = "start the processes by `torchrun`, which `--world-size` takes the place of"
    function = _refuse_call("starts its ranks itself by `torch.multiprocessing.spawn`", hint)
    for name in ("torch.multiprocessing.spawn", "torch.multiprocessing"):
        for attribute in ("spawn", "start_processes"):
            module: Any = sys.modules.get(name)
            if callable(getattr(module, attribute, None)):
                setattr(module, attribute, function)


def _refuse_rpc() -> None:
    module: Any = sys.modules["torch.distributed.rpc"]
    module.init_rpc = _refuse_call("uses `torch.distributed.rpc`, whose calls other ranks answer", "run all ranks")
