"""Plans that reach a target batch: micro-batches, and how a command is started with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomdoctor.codec import ADDED_LATER


@dataclass(frozen=True, slots=True)
class UniformPlan:
    """A plan for trainers that want one fixed micro-batch size.

    Attributes:
        micro_batch: The one size.
        steps: Accumulation steps on each device.
        effective_batch: Samples per optimizer step over all devices; above the target where no divisor is near.
    """

    micro_batch: int
    steps: int
    effective_batch: int


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Accumulation plan that reaches the target batch; of a command, what it does as `CommandPlan.run` starts it.

    Attributes:
        target_batch: Samples per optimizer step over all devices that were asked for.
        world_size: Devices that share the target batch.
        steps: Accumulation steps on each device.
        micro_batches: Size of each micro-batch on one device; they differ by at most one and sum to the device's share.
        effective_batch: Samples per optimizer step over all devices; equals the target. A command's may be above it,
            where no divisor is near, and is below it where the command is not told its accumulation steps.
        uniform: Best plan with one fixed size that sums to the target exactly; None where that would cost more than a
            quarter more steps.
        fixed_size: What a trainer with the largest of `micro_batches` as its fixed size would do; it may overshoot.
    """

    target_batch: int
    world_size: int
    steps: int
    micro_batches: tuple[int, ...]
    effective_batch: int
    uniform: UniformPlan | None
    fixed_size: UniformPlan


@dataclass(frozen=True, slots=True)
class EditedLiteral:
    """A literal of one of the command's files that its trials set, and that has to be edited to train so.

    Attributes:
        file: The file, as it was given.
        line: Line of the value.
        name: The name that has it.
        value: What was asked for, with placeholders.
        text: The value as it stands in the file.
        new: The value of the plan; None where nothing fits.
    """

    file: str
    line: int
    name: str
    value: str
    text: str
    new: str | None


@dataclass(frozen=True, slots=True)
class CommandPlan:
    """A command that was probed, and how to start it so that it reaches the target batch, or comes as near as it can.

    Attributes:
        words: As it was given, with placeholders.
        run: With the plan's sizes filled in, as it was run; None where nothing fits.
        sizes: The one size that `run` has, and what it reaches.
        literals: Literals of its files that were set beside.
    """

    words: tuple[str, ...]
    run: tuple[str, ...] | None
    sizes: UniformPlan | None = None
    literals: tuple[EditedLiteral, ...] = field(default=(), metadata=ADDED_LATER)

    @property
    def templates(self) -> tuple[str, ...]:
        """Texts in which the sizes are filled in: its words, and the values of its literals."""
        return (*self.words, *(literal.value for literal in self.literals))
