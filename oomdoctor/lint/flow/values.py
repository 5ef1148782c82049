"""What is known of a value without running the code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast

    from oomdoctor.lint.code.functions import Class, Function

_numbers = count(1)


class Kind(StrEnum):
    """What a value is used as."""

    UNKNOWN = "unknown"
    MODEL = "model"  # a torch module that is trained or evaluated
    LOSS_FUNCTION = "loss function"  # a criterion: called on outputs, gives a loss
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "scaler"  # torch.amp.GradScaler
    LOADER = "loader"  # gives batches
    ACCELERATOR = "accelerator"  # accelerate.Accelerator
    FABRIC = "fabric"  # lightning.Fabric
    ENGINE = "engine"  # a DeepSpeed engine
    TRAINER = "trainer"  # a trainer that runs the loop itself
    TENSOR = "tensor"
    CONTAINER = "container"  # a list, a dict, a tuple; `parts` are the values of a tuple that is written out
    NUMBER = "number"  # of Python, or text: holds no tensor
    ARRAY = "array"  # of NumPy: holds no tensor
    CHECKPOINT = "checkpoint"  # what torch.load gave, or a part of it
    FUNCTION = "function"  # `function` says which
    CLASS = "class"  # `class_` says which
    NONE = "none"


class Graph(StrEnum):
    """Whether a tensor hangs on the graph that autograd keeps for a backward pass."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Device(StrEnum):
    """Where a tensor lies."""

    GPU = "gpu"  # or wherever the model is
    CPU = "cpu"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One value.

    Attributes:
        kind: What it is used as.
        graph: Whether it keeps a graph alive; YES is only said where it is sure.
        device: Where it lies.
        node: The expression that made it; None where that is not known.
        identity: A number that two values share only if they are one value.
        made_from: Identities of the values that it was computed from, its own among them.
        divided_by: Source texts of what it was divided by on the way, such as `args.accumulation_steps`.
        parts: Values of a tuple, a list or a dictionary that is written out.
        function: Which function, for FUNCTION.
        class_: Which class of the repository, for CLASS and for what is made of one.
        receiver: For a method taken from an object, that object.
        library: Qualified name of the library's class or function that made it, such as `torch.optim.AdamW`.
        wrapped: Whether it is a model under DistributedDataParallel or FullyShardedDataParallel.
        is_loss: Whether it was made by a loss function, read from `.loss`, or is what backward is called on.
    """

    kind: Kind = Kind.UNKNOWN
    graph: Graph = Graph.UNKNOWN
    device: Device = Device.UNKNOWN
    node: ast.expr | None = None
    identity: int = field(default_factory=lambda: next(_numbers))
    made_from: frozenset[int] = frozenset()
    divided_by: tuple[str, ...] = ()
    parts: tuple[Value, ...] = ()
    function: Function | None = None
    class_: Class | None = None
    receiver: Value | None = None
    library: str | None = None
    wrapped: bool = False
    is_loss: bool = False

    def comes_from(self, other: Value) -> bool:
        """Whether it is `other` or was computed from it."""
        return self.identity == other.identity or other.identity in self.made_from

    def but(self, **changes: object) -> Value:
        """The same value, with more known about it."""
        return replace(self, **changes)  # type: ignore[arg-type]


UNKNOWN = Value(identity=0)
"""Nothing is known. It is not one value: `comes_from` means nothing for it."""
