"""Whether other processes' memory moved during a probe: if it did, another run may answer otherwise."""

from __future__ import annotations

from oomdoctor.devices.monitor import other_process_bytes

_TOLERANCE_BYTES = 2 * 1024**2
"""One page of the driver: less than this cannot change what an allocation finds."""


class OtherProcesses:
    """Other processes' memory on the probed GPU, read while no process of ours is on it: before and after.

    Args:
        device: Index or UUID of the local GPU; None where the device is not shared (a null GPU).

    Attributes:
        before_bytes: What they held when the probe began; None where nobody can say.
    """

    def __init__(self, device: str | None) -> None:
        self._device = device
        self.before_bytes = self._read()

    def moved(self) -> bool | None:
        """Whether they hold more or less than they did; None where nobody can say."""
        if self._device is None:
            return False
        now = self._read()
        if now is None or self.before_bytes is None:
            return None
        return abs(now - self.before_bytes) > _TOLERANCE_BYTES

    def _read(self) -> int | None:
        return None if self._device is None else other_process_bytes(self._device)
