"""Objects and barriers of `torch.distributed`, exchanged through the ranks' store instead of a null GPU.

A group's calls come in the same order on all of its ranks, so each can number them by itself; a number names the call's
keys in the store. Who reads a key last takes it out.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import datetime as dt
import inspect
import io
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import lone_rank
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Arguments = dict[str, Any]
    Replacement = Callable[[Callable[..., Any]], Callable[..., Any]]

_PIECE_BYTES = 4 << 20  # a store takes 8 MiB at once
_NCCL_TIMEOUT = dt.timedelta(minutes=10)
_calls: Counter[str] = Counter()


class Exchange:
    """One call of a group's ranks.

    Attributes:
        rank: This process's rank in the group.
        size: Number of ranks in the group.
    """

    def __init__(self, torch: Any, c10d: Any, group: Any, kind: str) -> None:
        self.rank: int = group.rank()
        self.size: int = group.size()
        self._store = c10d._get_process_group_store(group)  # noqa: SLF001
        self._timeout = _NCCL_TIMEOUT
        with suppress(Exception):  # a group's own is where NCCL's backend keeps it
            self._timeout = group._get_backend(torch.device("cuda")).options._timeout  # noqa: SLF001
        name = f"{group.group_name}/{kind}"
        _calls[name] += 1
        self._prefix = f"oomdoctor/{kind}/{_calls[name]}"

    def give(self, name: str, data: bytes) -> None:
        """Leave something under a name."""
        key = f"{self._prefix}/{name}"
        pieces = [data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES)]
        for number, piece in enumerate(pieces):
            self._store.set(f"{key}/{number}", piece)
        self._store.set(key, str(len(pieces)))  # whoever waits for it finds all of them

    def take(self, name: str, readers: int) -> bytes:
        """Wait for what is given under a name, at most as long as NCCL would, and take it out as the last reader."""
        key = f"{self._prefix}/{name}"
        self._store.wait([key], self._timeout)
        pieces = [f"{key}/{number}" for number in range(int(self._store.get(key)))]
        data = b"".join(self._store.get(piece) for piece in pieces)
        if self._store.add(f"{key}/read", 1) >= readers:
            for used in (key, f"{key}/read", *pieces):
                self._store.delete_key(used)
        return data

    def wait_for_all(self) -> None:
        """Wait until every rank is here."""
        if self._store.add(f"{self._prefix}/here", 1) == self.size:
            self._store.delete_key(f"{self._prefix}/here")
            self.give("all", b"1")
        self.take("all", readers=self.size)


def replacements(torch: Any, c10d: Any) -> dict[str, Replacement]:
    """Return replacements of `barrier` and of `torch.distributed` functions that send objects through the GPU."""
    exchange = {
        "all_gather_object": _all_gather,
        "gather_object": _gather,
        "broadcast_object_list": _broadcast,
        "scatter_object_list": _scatter,
        "send_object_list": _send,
        "recv_object_list": _receive,
    }
    made = {name: _make_object_function(torch, c10d, function) for name, function in exchange.items()}
    made["barrier"] = lambda original: _make_barrier(torch, c10d, original)
    return made


def _make_object_function(torch: Any, c10d: Any, exchange: Callable[[_Call], Any]) -> Replacement:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def replacement(*arguments: Any, **named: Any) -> Any:
            call = guarded(_read_call)(torch, c10d, signature, arguments, named)
            return original(*arguments, **named) if call is None else exchange(call)

        return replacement

    return make


def _make_barrier(torch: Any, c10d: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def barrier(*arguments: Any, **named: Any) -> Any:
        work = original(*arguments, **named)
        call = guarded(_read_call)(torch, c10d, signature, arguments, named)
        if call is not None and not call.given.get("async_op"):
            call.exchange("barrier").wait_for_all()
        return work

    return barrier


class _Call:
    """A call of a function that would go through the GPU.

    Attributes:
        given: Its arguments by name, with the defaults.
        group: The group that makes it.
        c10d: The module of torch that has groups.
    """

    def __init__(self, torch: Any, c10d: Any, group: Any, given: Arguments) -> None:
        self._torch = torch
        self.c10d = c10d
        self.group = group
        self.given = given

    def exchange(self, kind: str) -> Exchange | lone_rank.LoneExchange:
        if lone_rank.is_lone():
            return self._lone_exchange(kind)
        return Exchange(self._torch, self.c10d, self.group, kind)

    def _lone_exchange(self, kind: str) -> lone_rank.LoneExchange:
        ranks = ",".join(map(str, self.c10d.get_process_group_ranks(self.group)))
        _calls[name := f"{ranks}/{kind}"] += 1
        group, is_gather = self.group, kind == "gather"
        return lone_rank.LoneExchange(f"{name}/{_calls[name]}", group.rank(), group.size(), is_gather=is_gather)

    def peer(self, name: str) -> int:
        """The rank in the group that is called `dst` or `src`, or by its number in the group."""
        inside = self.given.get(f"group_{name}")
        if inside is not None:
            return int(inside)
        world_rank = self.given.get(name)
        return int(self.c10d.get_group_rank(self.group, 0 if world_rank is None else world_rank))

    def pack(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        if self.given.get("weights_only"):
            self._torch.save(value, buffer)
        else:
            self.c10d._pickler(buffer).dump(value)  # noqa: SLF001
        # For a moment it takes of the GPU what the object would.
        self._torch.empty(buffer.tell(), dtype=self._torch.uint8, device="cuda")
        return buffer.getvalue()

    def unpack(self, data: bytes) -> Any:
        if self.given.get("weights_only"):
            return self._torch.load(io.BytesIO(data), weights_only=True)
        return self.c10d._unpickler(io.BytesIO(data)).load()  # noqa: SLF001


def _read_call(torch: Any, c10d: Any, signature: inspect.Signature, arguments: Any, named: Any) -> _Call | None:
    """Read a call that would go through a null GPU; None where it would not or is wrong."""
    bound = signature.bind(*arguments, **named)
    bound.apply_defaults()
    given = dict(bound.arguments)
    if c10d._rank_not_in_group(given.get("group")):  # noqa: SLF001
        return None
    group = given.get("group") or c10d._get_default_group()  # noqa: SLF001
    device = given.get("device") or c10d._get_object_coll_device(group)  # noqa: SLF001
    if torch.device(device).type != "cuda" or "fake" in str(c10d.get_backend(group)):
        return None
    return _Call(torch, c10d, group, given)


def _all_gather(call: _Call) -> None:
    exchange = call.exchange("gather")
    exchange.give(str(exchange.rank), call.pack(call.given["obj"]))
    for rank in range(exchange.size):
        call.given["object_list"][rank] = call.unpack(exchange.take(str(rank), readers=exchange.size))


def _gather(call: _Call) -> None:
    exchange = call.exchange("gather")
    exchange.give(str(exchange.rank), call.pack(call.given["obj"]))
    if exchange.rank == call.peer("dst"):
        for rank in range(exchange.size):
            call.given["object_gather_list"][rank] = call.unpack(exchange.take(str(rank), readers=1))


def _broadcast(call: _Call) -> None:
    exchange = call.exchange("broadcast")
    objects = call.given["object_list"]
    if exchange.rank != call.peer("src"):
        _put(objects, call.unpack(exchange.take("objects", readers=exchange.size - 1)))
    elif exchange.size > 1:
        exchange.give("objects", call.pack(list(objects)))


def _scatter(call: _Call) -> None:
    exchange = call.exchange("scatter")
    if exchange.rank == call.peer("src"):
        for rank, value in enumerate(call.given["scatter_object_input_list"]):
            exchange.give(str(rank), call.pack(value))
    call.given["scatter_object_output_list"][0] = call.unpack(exchange.take(str(exchange.rank), readers=1))


def _send(call: _Call) -> None:
    exchange = call.exchange(f"from {call.group.rank()} to {call.peer('dst')}")
    exchange.give("objects", call.pack(list(call.given["object_list"])))


def _receive(call: _Call) -> int:
    source = call.peer("src")
    exchange = call.exchange(f"from {source} to {call.group.rank()}")
    _put(call.given["object_list"], call.unpack(exchange.take("objects", readers=1)))
    return int(call.c10d.get_global_rank(call.group, source))


def _put(place: Any, values: Iterable[Any]) -> None:
    for index, value in enumerate(values):
        place[index] = value
