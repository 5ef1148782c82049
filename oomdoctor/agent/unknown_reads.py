"""Reads of values that a null GPU does not have, by the line of the program that reads them.

The null GPU answers such a read with zeros. To log a loss, that is harmless, and a check (`assert isfinite(loss)`) gets
the answer that passes it. Where the value decides where the program goes (`if mask.any()`), or how large a tensor is
(`boxes[keep]`, `nonzero`), memory may be another than on a GPU, and a loop that waits for a value never ends. So each
read is noted with the line and the expression, and an endless loop is ended with an error that names it.
"""

# ruff: noqa: ANN401 - the null GPU's library has no type here

from __future__ import annotations

import ast
import atexit
import ctypes
import dis
import linecache
import os
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .checks import check_of
from .guard import guarded, note_failure
from .messages import UnknownRead

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

    from .checks import Checked

Effect = Literal["size", "decision", "bound", "even", "check", "value"]

_MOST_READS = 20_000
_LONGEST_SECONDS = 10.0
"""A line that has read so often for so long, without a step in between, waits for a value."""
_EFFECTS = {
    "size": "the size of a tensor",
    "decision": "a condition",
    "bound": "the most rows that there can be",
    "even": "spread evenly",
    "check": "a check",
    "value": "a value",
}
_BALANCED = (
    "Where a router of experts takes them, force it to balance its tokens and the count is exact: "
    "`--debug.moe_force_load_balance` of torchtitan, `--moe-router-force-load-balancing` of Megatron, or a capacity "
    "for each expert"
)
_MOST_TOLD = 3
_MOST_LINES = 200
_LONGEST_TEXT = 60
_FINDING = frozenset(
    ("nonzero", "argwhere", "masked_select", "where", "unique", "unique_consecutive", "bincount", "repeat_interleave",
     "one_hot", "histc", "coalesce", "nms", "batched_nms")
)  # fmt: skip
"""Functions whose result has a size that depends on values."""
_CONDITIONS = ("if ", "elif ", "while ", "assert ")
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - `pathlib` costs more
_EXAMPLES = os.path.join(_OWN, "examples")  # noqa: PTH118
_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
_TORCH = tuple(f"{folder}torch{os.sep}" for folder in _FOLDERS)
_DISPATCHERS = ("_ops.py", "_python_dispatch.py")
_LOGGING = (os.path.join("transformers", "trainer.py"), os.path.join("transformers", "trainer_utils.py"))  # noqa: PTH118
"""Files of libraries whose conditions look whether a loss is finite, to log it."""
_RECURRENT = os.path.join("torch", "nn", "modules", "rnn.py")  # noqa: PTH118
"""File whose modules draw the seed of cuDNN's dropout on the GPU, and read it: memory does not depend on it."""
_ROUNDING = frozenset(
    ("fused_moving_avg_obs_fake_quant", "fake_quantize_per_channel_affine",
     "_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_learnable_per_channel_affine")
)  # fmt: skip
"""Functions that read scales and zero points to check them and to round by them: memory does not depend on them."""


class _Line:
    """One instruction that reads: `inner` is its place, and `program` that of the program's line that led there."""

    def __init__(self, inner: str, program: str, text: str, effect: Effect) -> None:
        self.inner, self.program, self.text, self.effect = inner, program, text, effect
        self.last = self.since_progress = 0
        self.error: bytes | None = None  # kept, since C is given its address

    @property
    def place(self) -> str:
        if self.program in ("", self.inner):
            return self.inner
        return f"{self.program} (in {self.inner})"


class _State:
    """The reads of this process."""

    def __init__(self) -> None:
        self.lines: dict[tuple[CodeType, int, str], _Line] = {}
        self.total = self.harmless = 0
        self.are_harmless: dict[tuple[CodeType, int], bool] = {}
        self.progress_at = 0.0
        self.callback: Any = None
        self.answer: Any = None


_STATE = _State()


def begin() -> None:
    """Note every read from now on, in a process on a null GPU that has imported torch."""
    library: Any = ctypes.CDLL(None)
    if _STATE.callback is None and hasattr(library, "oomdoctor_null_on_read"):
        _STATE.callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64)(_note_read)
        library.oomdoctor_null_on_read(_STATE.callback)
        _STATE.answer = library.oomdoctor_null_answer_reads
        _STATE.answer.argtypes = [ctypes.c_uint64, ctypes.c_int]
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(guarded(lambda *_: mark() and None))
        atexit.register(library.oomdoctor_null_on_read, None)  # a thread that reads later would wait for Python


def harmless_reads() -> int:
    """Return how many reads were PyTorch's own, and took the same memory whatever they read."""
    return _STATE.harmless


def mark() -> int:
    """Return the number of reads so far, for `reads`, and take the loops before as ended: the program has moved on."""
    _STATE.progress_at = time.monotonic()
    for line in _STATE.lines.values():
        line.since_progress = 0
    return _STATE.total


def reads(since: int = 0) -> tuple[UnknownRead, ...]:
    """Return the lines that read after `since`, what `mark` returned, and not those of PyTorch itself.

    A library's line is told with the program's that led there. Where none did, as where a library's model is called
    without a step of the file's own, it is told by itself.
    """
    found = [line for line in _STATE.lines.values() if line.last > since]
    led = {line.inner for line in found if line.program}  # a backward that runs it again has none of its callers
    told = [line for line in found if line.program or line.inner not in led]
    return tuple(dict.fromkeys(UnknownRead(line.place, line.text, line.effect) for line in told))


@guarded
def note(effect: Effect, *, if_deciding: bool = False) -> None:
    """Note the program's line that asks for a value, where the null GPU answers otherwise than with zeros.

    Args:
        effect: What was assumed.
        if_deciding: Whether to note only a line where the value decides something: a number is often read to log it.
    """
    reading, program = _reader(sys._getframe(1))  # noqa: SLF001 - the only way to one's callers
    if reading is not None:
        line = _STATE.lines.get((reading.f_code, reading.f_lasti, effect)) or _line(reading, program)
        if not (if_deciding and line.effect == "value"):
            _STATE.lines[reading.f_code, reading.f_lasti, effect] = line
            _STATE.total += 1
            line.effect, line.last = effect, _STATE.total


def note_read() -> bool | None:
    """Note a read on a device that is emulated in Python.

    Returns:
        What a boolean is read as where a check of the program asks for it; None where none does.

    Raises:
        RuntimeError: The program waits for a value in a loop.
    """
    _STATE.total += 1
    noted: _Noted | None = guarded(_noted)(sys._getframe())  # noqa: SLF001 - the only way to one's callers
    if noted is None:
        return None
    if noted.error is not None:
        raise RuntimeError(noted.error.decode())
    return noted.answer


def _note_read(nbytes: int) -> int | None:
    """Note a read; return the address of an error's text where the program waits for a value in a loop."""
    _STATE.total += 1
    try:
        # Not in a variable here: a frame that holds itself would keep the tensors of its callers until a collection.
        error, answer = _noted(sys._getframe())  # noqa: SLF001 - the only way to one's callers
    except Exception as failure:  # noqa: BLE001 - C would take what is not returned for an address
        note_failure("unknown_reads", failure)
        return None
    if answer is not None:
        _STATE.answer(answer and nbytes == 1, 1)
    return None if error is None else ctypes.cast(ctypes.c_char_p(error), ctypes.c_void_p).value


class _Noted(NamedTuple):
    """Answer to a read: an error where a loop waits for it, and the truth that passes a check, if one asks."""

    error: bytes | None = None
    answer: bool | None = None


def _noted(frame: FrameType) -> _Noted:
    if _is_harmless(frame):
        _STATE.harmless += 1
        return _Noted()
    check = check_of(_innermost(frame))
    answer = None if check is None else bool(check.passes)
    reading, program = _reader(frame)
    if reading is None:  # as in backward, whose threads are not Python's
        return _Noted(None, answer)
    line = _line_of(reading, program, check)
    if line is None:
        return _Noted(None, answer)
    line.since_progress += 1
    line.last = _STATE.total
    return _Noted(_waiting(line), answer)


def _line_of(reading: FrameType, program: FrameType | None, check: Checked | None) -> _Line | None:
    """Return the line of a read, new or known; None where there are too many."""
    place = "" if program is None else _place(program)
    key = (reading.f_code, reading.f_lasti, place if check is None else "check")
    if key not in _STATE.lines and len(_STATE.lines) < _MOST_LINES:
        _STATE.lines[key] = _line(reading, program)
        if check is not None:
            _STATE.lines[key].effect = "check"
    return _STATE.lines.get(key)


def _waiting(line: _Line) -> bytes | None:
    """Return the text of an error where a line has read for too long; None while it has not."""
    if line.effect == "size" or line.since_progress < _MOST_READS:  # nobody waits for a tensor of another size
        return None
    if time.monotonic() - _STATE.progress_at < _LONGEST_SECONDS:
        return None
    line.since_progress = 0
    line.error = (
        f"`{line.text}` at {line.place} was read {_MOST_READS:,} times without a step: a loop waits for a value that "
        "the null GPU does not have, since it computes nothing"
    ).encode()
    return line.error


def _is_harmless(frame: FrameType) -> bool:
    """Return whether what reads takes the same memory whatever it reads."""
    reading = _innermost(frame)
    if reading is None:
        return False
    key = reading.f_code, reading.f_lasti
    if key not in _STATE.are_harmless:
        draws_seed = reading.f_code.co_filename.endswith(_RECURRENT)
        _STATE.are_harmless[key] = draws_seed or _called(_expression(reading)) in _ROUNDING
    return _STATE.are_harmless[key]


def _innermost(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, PyTorch's too, but for this package's and those that dispatch operators."""
    while frame is not None and (_is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.endswith(_DISPATCHERS)):
        frame = frame.f_back
    return frame


def _is_ours(path: str) -> bool:
    return path.startswith(_OWN) and not path.startswith(_EXAMPLES)


def _reader(frame: FrameType) -> tuple[FrameType | None, FrameType | None]:
    """Return the innermost frame outside PyTorch, and the innermost of the program itself."""
    frames = _frames(frame)
    reading = next(frames, None)
    if reading is None or _is_programs(reading):
        return reading, reading
    return reading, next(filter(_is_programs, frames), None)


def _frames(frame: FrameType | None) -> Any:
    """Yield the frames outside PyTorch and this package, the innermost first."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not (_is_ours(path) or path.startswith("<frozen") or any(part in path for part in _TORCH)):
            yield frame
        frame = frame.f_back


def _is_programs(frame: FrameType) -> bool:
    return not any(part in frame.f_code.co_filename for part in _FOLDERS)


def is_programs_file(path: str) -> bool:
    """Return whether a file is the program's own: of no library, nor Python's or this package's."""
    return not (_is_ours(path) or path.startswith(("<", _STANDARD)) or any(part in path for part in _FOLDERS))


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119


def _line(reading: FrameType, program: FrameType | None) -> _Line:
    text = _expression(reading)
    effect: Effect = "value"
    if _decides(reading):
        effect = "decision"
    elif _finds(text):
        effect = "size"
    shown = " ".join(_tested(text).split())
    shown = shown if len(shown) <= _LONGEST_TEXT else f"{shown[: _LONGEST_TEXT - 3]}..."
    return _Line(_place(reading), "" if program is None else _place(program), shown, effect)


def _decides(frame: FrameType) -> bool:
    """Return whether a frame reads a condition: by its instruction, or in the line of a statement that has one."""
    opcode = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    is_condition = any(part in opcode for part in ("JUMP", "BOOL", "NOT")) or (
        line.lstrip().startswith(_CONDITIONS) and not _is_after_condition(line, _position(frame)[2])
    )
    return is_condition and not frame.f_code.co_filename.endswith(_LOGGING)


def _is_after_condition(line: str, column: int | None) -> bool:
    """Return whether a column is in what follows a condition in its line, as in `if step % 10 == 0: print(loss)`."""
    indent = len(line) - len(line.lstrip())
    try:
        statement = ast.parse(line.strip().removeprefix("el")).body[0]
    except (SyntaxError, ValueError, IndexError):  # the line is no whole statement
        return False
    return (
        column is not None
        and isinstance(statement, (ast.If, ast.While))
        and column >= statement.body[0].col_offset + indent + (2 if line.lstrip().startswith("el") else 0)
    )


def _position(frame: FrameType) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the first and the last line and the first and the last column of the expression that a frame evaluates."""
    return next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)


def _expression(frame: FrameType) -> str:
    """Return the source of the expression that a frame evaluates; empty where it is not known."""
    first, last, start, end = _position(frame)
    if first is None or last is None or start is None or end is None:
        return ""
    lines = [linecache.getline(frame.f_code.co_filename, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")


def _tested(text: str) -> str:
    """Return the condition of a statement; other source as it is."""
    try:
        statement = ast.parse(text).body[0]
    except (SyntaxError, ValueError, IndexError):
        return text
    return ast.unparse(statement.test) if isinstance(statement, (ast.If, ast.While, ast.Assert)) else text


def _finds(text: str) -> bool:
    """Return whether the size of an expression's result depends on values: of a mask as an index, or of `nonzero`."""
    return _called(text) in _FINDING or isinstance(_parsed(text), ast.Subscript)


def _called(text: str) -> str:
    """Return the name of the function that an expression calls; empty where it is no call."""
    node = _parsed(text)
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else str(getattr(node.func, "id", ""))


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None


_GOES_ON_WITH_BEAMS = "_beam_search_has_unfinished_sequences"
"""Function of transformers (4.50 to 5) whose answer ends a search with beams; other loops are ended by their length."""


# --- what is told of them --------------------------------------------------------------------------------------------


def describe_reads(reads: Sequence[UnknownRead]) -> str:
    """Return where values were read that a null GPU does not have, those first on which memory may depend."""
    ordered = sorted(reads, key=lambda read: list(_EFFECTS).index(read.effect))
    told = [f"{f'`{read.text}` at ' if read.text else ''}{read.place} ({_EFFECTS[read.effect]})" for read in ordered]
    rest = [f"{len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    return ", ".join(told[:_MOST_TOLD] + rest)


def read_warnings(reads: Sequence[UnknownRead], program: str) -> list[str]:
    """Return warnings of values on which memory may depend, and of what was assumed of them.

    Args:
        reads: The program's reads; a value that is read to log it is harmless.
        program: What to call the program, such as `the command`.
    """
    found = []
    if deciding := [read for read in reads if read.effect in ("size", "decision")]:
        found.append(
            f"{program} reads values that a null GPU does not have, and got zeros: {describe_reads(deciding)}; "
            "memory that depends on them is not counted, and training may need more"
        )
    return found + bound_warnings(reads)


def bound_warnings(reads: Sequence[UnknownRead]) -> list[str]:
    """Return warnings of what was assumed where sizes depend on values that are not known."""
    found = []
    for effect, what, then in (
        ("bound", "rows that depend on values which a null GPU does not have", "training may need less"),
        ("even", "choices that a null GPU does not compute", f"training may need more where they are not. {_BALANCED}"),
    ):
        if assumed := [read for read in reads if read.effect == effect]:
            found.append(f"{what} were counted by an assumption: {describe_reads(assumed)}; {then}")
    beams = [read.place for read in reads if _GOES_ON_WITH_BEAMS in read.text]
    if beams:
        found.append(
            f"`generate()` with several beams ended after its first token at {beams[0]}: values decide whether it goes "
            "on, and a null GPU has none. `num_beams=1` with as many times the samples generates all tokens, in about "
            "the memory that the beams take"
        )
    return found
