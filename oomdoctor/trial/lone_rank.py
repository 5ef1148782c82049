"""One rank of a model file's world, in the worker: its process group and mesh, its model, and its state after a trial.

The other ranks are absent: `oomdoctor.agent.lone_rank` answers in their place, as it does in a command's processes.
FSDP2's state is read where torch 2.6 to 2.15 keep it.
"""

from __future__ import annotations

import functools
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from oomdoctor.errors import RanksNeededError, TargetError, UsageError
from oomdoctor.remedies.blocks import class_line, pattern, repeated_blocks
from oomdoctor.run.launcher import MODEL_DIMENSIONS, PIPELINE_DIMENSIONS, Mesh, lone_variables, parse_mesh
from oomdoctor.target.contract import call_user
from oomdoctor.target.placement import described
from oomdoctor.trial.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.results import LoneRank, Variant
    from oomdoctor.target.contract import Target

_HINT_FOR_PARALLELIZE: Final = """\
define `parallelize(model, mesh)` in the file, for example:

    def parallelize(model, mesh):  # the model is on the meta device; oomdoctor gives it memory afterwards
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])

or give `--parallel fsdp`"""
HINT_FOR_META: Final = (
    "with `parallelize` or `--parallel fsdp` the model is built on the meta device, where tensors have no values: "
    "compute what `build_model` reads in plain Python, or under `with torch.device('cpu'):`"
)
_HINT_FOR_META_MODEL: Final = (
    "`parallelize` gets the model on the meta device, as `fully_shard` wants it; what wants it on the GPU, such as "
    "DistributedDataParallel, goes after `model.to_empty(device='cuda')`"
)
_META: Final = re.compile(r"\bmeta\b", re.IGNORECASE)
_OWN_STATE: Final = "torch.distributed.fsdp._fully_shard"


def check_ranks(target: Target, variant: Variant, world_size: int) -> None:
    """See that a file of a world is asked for the ranks that it parallelises.

    Args:
        target: The user's functions.
        variant: The variant; it has a rank where one is asked for.
        world_size: Devices that share the target batch.

    Raises:
        RanksNeededError: The file parallelises its model, and no rank was named.
        UsageError: A rank was named, and nothing or two things parallelise the model.
    """
    alone, location = variant.lone_rank, target.reference.location
    if alone is None:
        if world_size > 1 and target.parallelize is not None:
            raise RanksNeededError(
                f"`{location}` has `parallelize`, and its ranks run by `oomdoctor probe` alone",
                hint=f"probe it: `oomdoctor probe {target.name} --world-size {world_size} --gpu ...`",
            )
    elif alone.parallel is None and target.parallelize is None:
        raise UsageError(f"`{location}` has no `parallelize(model, mesh)`", hint=_HINT_FOR_PARALLELIZE)
    elif alone.parallel is not None and target.parallelize is not None:
        raise UsageError(
            f"`{location}` has `parallelize`, and `--parallel {alone.parallel}` is given",
            hint="drop `--parallel`: the file says it",
        )


@dataclass(slots=True, kw_only=True)
class RankOfFile(Placement):
    """A rank of a world whose model a file builds.

    Attributes:
        target: The user's functions.
        alone: The rank.
        mesh: The world's device mesh.
    """

    target: Target
    alone: LoneRank
    mesh: DeviceMesh
    is_whole: ClassVar[bool] = False
    _kept: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    _wrapped: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    _has_fsdp1: bool = False

    @classmethod
    def join(cls, target: Target, alone: LoneRank) -> RankOfFile:
        """Make the world's process group and its mesh.

        Raises:
            UsageError: The mesh is none that `--parallel` can take.
        """
        sizes = parse_mesh(alone.mesh or f"dp={alone.world_size}", "--mesh")
        if alone.parallel is not None:
            _check_shorthand(sizes, alone.parallel)
        os.environ |= lone_variables(alone)
        dist.init_process_group("nccl", rank=alone.rank, world_size=alone.world_size)
        names = tuple(sizes.sizes)
        mesh = init_device_mesh("cuda", tuple(sizes.sizes.values()), mesh_dim_names=names)
        return cls(target=target, alone=alone, mesh=mesh)

    @property
    def builds_on_meta(self) -> bool:
        """Whether the model is built without memory; DistributedDataParallel wants one that has it."""
        return self.alone.parallel != "ddp"

    def place(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the model as this rank trains it, on the device, with memory and without values.

        Raises:
            TargetError: The file's `parallelize` raised, or returned no module.
            torch.OutOfMemoryError: The rank's part of it does not fit.
        """
        with _noted_wrappers(self._wrapped):
            if self.alone.parallel == "ddp":
                model = nn.parallel.DistributedDataParallel(model.to(device), device_ids=[device.index])
                self.how = "DistributedDataParallel around the model"
            elif self.alone.parallel == "fsdp":
                self.how = _shard(model, self.mesh)
            else:
                model = self._parallelized(model)
        give_memory(model, device)
        _apply(model, device, lambda tensor, place: tensor.to(place))
        self._keep_state(model)
        return model

    def leave(self, model: nn.Module) -> None:
        """Leave it where it is: no other trial follows."""

    def end_trial(self) -> None:
        """Put FSDP2 and DistributedDataParallel back to where the first trial found them.

        A trial that failed leaves them in the middle of a step, and one that did not leaves buckets in another order.
        """
        for wrapper, arguments, named in self._wrapped:
            wrapper.__dict__.clear()  # its buckets go before there are others
            wrapper.__init__(*arguments, **named)
        for item, attributes in self._kept:
            vars(item).clear()
            vars(item).update({name: _copied(value) for name, value in attributes.items()})
            if hasattr(item, "sharded_param"):
                item._setattr_on_modules(item.sharded_param)  # noqa: SLF001 - no public way

    @property
    def outlives_failures(self) -> bool:
        """Whether another trial can follow one that failed; the first FSDP is left in the middle of its step."""
        return not self._has_fsdp1

    def _parallelized(self, model: nn.Module) -> nn.Module:
        function, call = self.target.parallelize, "parallelize(model, mesh)"
        if function is None:
            raise RuntimeError("a rank of a file has something that parallelises its model")
        with hinted_for_meta(_HINT_FOR_META_MODEL):
            found = call_user(self.target, function, model, self.mesh, call=call)
        if found is not None and not isinstance(found, nn.Module):
            hint = "return the model, or change it in place and return nothing"
            raise TargetError(f"`{call}` returned {described(found)}, not a `torch.nn.Module`", hint=hint)
        location = next((each.location for each in self.target.found if each.role == "parallelize"), None)
        self.how = "`parallelize`" + (f" at {location}" if location else "")
        return model if found is None else found

    def _keep_state(self, model: nn.Module) -> None:
        self._has_fsdp1 = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
        states = list(_fsdp_states(model))
        for state in states:
            state._lazy_init()  # noqa: SLF001 - else the first trial does it, whose memory would stay
        self._kept = [
            (item, {name: _copied(value) for name, value in vars(item).items()}) for item in _own_objects(states)
        ]


@contextmanager
def _noted_wrappers(noted: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> Iterator[None]:
    """Note each DistributedDataParallel that is made, with its arguments."""
    kind: Any = nn.parallel.DistributedDataParallel
    make = kind.__init__

    @functools.wraps(make)
    def init(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - what the class takes
        noted.append((self, arguments, named))
        make(self, *arguments, **named)

    kind.__init__ = init
    try:
        yield
    finally:
        kind.__init__ = make


def _check_shorthand(mesh: Mesh, parallel: str) -> None:
    """See that a mesh divides nothing but the batch and, of FSDP, the parameters."""
    others = [name for name in mesh.sizes if name.partition("_")[0] in (*MODEL_DIMENSIONS, *PIPELINE_DIMENSIONS, "ep")]
    if others:
        raise UsageError(
            f"`--parallel {parallel}` cannot divide a model along `{others[0]}`: nobody but its author knows where",
            hint=_HINT_FOR_PARALLELIZE.rpartition("\n\nor ")[0],
        )
    most = 2 if parallel == "fsdp" else 1
    if len(mesh.sizes) > most:
        raise UsageError(
            f"`--parallel {parallel}` takes a mesh of at most {most} dimensions, and this one has {len(mesh.sizes)}",
            hint="give `--mesh replicate=2,shard=8` for FSDP with replicas, or define `parallelize(model, mesh)`",
        )


def _shard(model: nn.Module, mesh: DeviceMesh) -> str:
    """Shard the outermost repeated blocks and the root; return what was sharded, in words."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - imports torch's compiler

    blocks = repeated_blocks(model)
    line = class_line(blocks) if blocks else ""  # of the class as it is now: FSDP2 makes another of it
    for _, block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    kind = "FSDP2 (`fully_shard`)" if mesh.ndim == 1 else "FSDP2 (`fully_shard`) with replicas"
    if not blocks:
        return f"{kind} on the root alone: no class of modules is repeated in the model"
    names = pattern([name for name, _ in blocks])
    return f"{kind} on {len(blocks)} blocks (`{names}`{line}) and on the root"


def give_memory(model: nn.Module, device: torch.device) -> None:
    """Give memory to what is on the meta device, without values; what is one tensor in several places stays one."""
    if not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    _apply(model, device, lambda tensor, place: torch.empty_like(tensor, device=place))
    for (first, name), *others in places.values():
        for module, other in others:
            setattr(module, other, getattr(first, name))
    for module in model.modules():
        for name, value in list(vars(module).items()):  # no buffers, and so on the CPU in a model that is built there
            if isinstance(value, torch.Tensor) and value.is_meta:
                setattr(module, name, torch.zeros_like(value, device="cpu"))


def _apply(
    model: nn.Module, device: torch.device, change: Callable[[torch.Tensor, torch.device], torch.Tensor]
) -> None:
    """Change each tensor of a model for the place where it trains: the CPU where FSDP2 offloads it, else the device."""
    own = _own_objects(list(_fsdp_states(model)))
    offloaded = {id(item.sharded_param) for item in own if getattr(item, "offload_to_cpu", False)}
    host = torch.device("cpu")
    own_apply: Any = model._apply  # noqa: SLF001 - as `to`
    own_apply(lambda tensor: change(tensor, host if id(tensor) in offloaded else device))


def _fsdp_states(model: nn.Module) -> Iterator[Any]:
    """Yield the state of each module that `fully_shard` was called on, the outermost first."""
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        if state is not None:
            yield state()


def _own_objects(roots: list[Any]) -> list[Any]:
    """Return all objects of FSDP2 that some reach."""
    found: dict[int, Any] = {}
    waiting = list(roots)
    while waiting:
        item = waiting.pop()
        if isinstance(item, list | tuple | set):
            waiting.extend(item)
        elif type(item).__module__.startswith(_OWN_STATE) and hasattr(item, "__dict__") and id(item) not in found:
            found[id(item)] = item
            waiting.extend(vars(item).values())
    return list(found.values())


def _copied(value: Any) -> Any:  # noqa: ANN401 - any attribute
    return value.copy() if isinstance(value, list | dict | set) else value


@contextmanager
def hinted_for_meta(hint: str = HINT_FOR_META) -> Iterator[None]:
    """Give an error that names the meta device a hint of what to do there; by default one for `build_model`."""
    try:
        yield
    except TargetError as error:
        if _META.search(error.message):
            error.hint = hint
        raise
