"""Plan how to reach a target batch with micro-batches that fit: exactly, and as evenly as whole samples allow."""

from __future__ import annotations

from oomdoctor.errors import UsageError
from oomdoctor.results import Accumulation, UniformPlan
from oomdoctor.units import whole_number

# A uniform plan may take this many times the steps of the even one before its plain loop is not worth its time.
_UNIFORM_STEPS = 1.25


# A plan lists every micro-batch; beyond this many samples it would be longer than anybody can read or train.
LARGEST_TARGET = 10_000_000


def per_device_target(target_batch: int, world_size: int = 1) -> int:
    """Return samples per optimizer step on one device.

    Args:
        target_batch: Samples per optimizer step over all devices.
        world_size: Devices that share it.

    Raises:
        UsageError: A number is no integer, below 1 or absurd, or the devices cannot share the target evenly.
    """
    target_batch, world_size = whole_number("target_batch", target_batch), whole_number("world_size", world_size)
    if world_size < 1:
        raise UsageError(
            f"world size {world_size} is not a number of devices", hint="pass the number of GPUs that train, 1 or more"
        )
    if target_batch < 1:
        raise UsageError(
            f"target batch {target_batch} is not a number of samples",
            hint="pass the samples per optimizer step over all devices, 1 or more",
        )
    if target_batch > LARGEST_TARGET:
        raise UsageError(
            f"target batch {target_batch} is more than {LARGEST_TARGET:,} samples in one optimizer step",
            hint="the target is what one step of the optimizer sees, not an epoch",
        )
    share, rest = divmod(target_batch, world_size)
    if rest:
        below, above = target_batch - rest, target_batch - rest + world_size
        nearest = f"{below} or {above}" if below else f"{above}"
        raise UsageError(
            f"target batch {target_batch} does not divide by world size {world_size}",
            hint=f"the nearest that divides: {nearest}",
        )
    return share


def plan_accumulation(target_batch: int, maximum: int, world_size: int = 1) -> Accumulation:
    """Plan the micro-batches of one optimizer step.

    Args:
        target_batch: Samples per optimizer step over all devices.
        maximum: Largest micro-batch that fits one device.
        world_size: Devices that share the target.

    Returns:
        The fewest steps that reach the target, with micro-batches that differ by at most one, largest first.

    Raises:
        UsageError: A number is no integer or below 1, or the devices cannot share the target evenly.
    """
    share = per_device_target(target_batch, world_size)
    target_batch, world_size = share * int(world_size), int(world_size)  # NumPy's are not for a document
    maximum = whole_number("maximum", maximum)
    if maximum < 1:
        raise UsageError(
            f"no plan reaches target batch {target_batch} with a largest micro-batch of {maximum}",
            hint="a plan needs a micro-batch of at least one sample that fits",
        )
    steps = -(-share // maximum)
    size, larger = divmod(share, steps)
    micro_batches = (size + 1,) * larger + (size,) * (steps - larger)
    fixed = micro_batches[0]
    return Accumulation(
        target_batch=target_batch,
        world_size=world_size,
        steps=steps,
        micro_batches=micro_batches,
        effective_batch=sum(micro_batches) * world_size,
        uniform=_uniform_plan(target_batch, share, maximum, steps),
        fixed_size=UniformPlan(fixed, steps, fixed * steps * world_size),
    )


def _uniform_plan(target_batch: int, share: int, maximum: int, steps: int) -> UniformPlan | None:
    """Return the plan with the largest size that divides the share, unless it takes too many steps."""
    # Divisors of the share are its quotients by step counts: the fewest steps that divide it give the largest size.
    for count in range(steps, int(steps * _UNIFORM_STEPS) + 1):
        if share % count == 0 and share // count <= maximum:
            return UniformPlan(share // count, count, target_batch)
    return None
