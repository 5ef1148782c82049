"""Inputs that nobody meant: messages of every kind, cut, doubled, interleaved, and with numbers that cannot be."""

from __future__ import annotations

import random

from oomdoctor.agent.oom_errors import table

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/user/project/train.py", line 42, in <module>
    main()
  File "/home/user/project/train.py", line 30, in main
    loss = model(batch)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1739, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""

ALLOCATOR_MESSAGES = (
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 7.79 GiB total capacity; "
        "5.02 GiB already allocated; 900.12 MiB free; 64.03 MiB cached)"
    ),
    (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 352.00 MiB (GPU 1; 23.69 GiB total "
        "capacity; 21.75 GiB already allocated; 12.19 MiB free; 22.31 GiB reserved in total by PyTorch) If reserved "
        "memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 3 has total capacity of 79.15 GiB "
        "of which 1.01 GiB is free. Process 31337 has 4.12 GiB memory in use. Including non-PyTorch memory, this "
        "process has 74.00 GiB memory in use. 75.00 GiB allowed; Of the allocated memory 70.11 GiB is allocated by "
        "PyTorch, with 96.00 MiB allocated in private pools (e.g., CUDA Graphs), and 3.31 GiB is reserved by PyTorch "
        "but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    ),
    (
        "RuntimeError: MPS backend out of memory (MPS allocated: 8.11 GiB, other allocations: 512.50 MiB, max allowed: "
        "9.07 GiB). Tried to allocate 256.00 MiB on private pool."
    ),
)

SEEDS = tuple(
    text.encode()
    for message in (*ALLOCATOR_MESSAGES, *(row.example for row in table().rows))
    for text in (message, TRACEBACK + message + "\n")
)

_NUMBERS = (
    b"17179869184.00 GiB",
    b"0 bytes",
    b"-1.00 MiB",
    b"1e309 GiB",
    b"99999999999999999999999999.99 MiB",
    b"nan GiB",
    b". GiB",
)
_PIECES = (
    b"\x1b[31m",
    b"\r",
    b"\n",
    b"\x00",
    b"\xff\xfe",
    b"[rank3]: ",
    b"[1,2]<stderr>:",
    b"Traceback (most recent call last):\n",
    b'  File "x.py", line 3, in f\n',
    b"\xe5\x86\x85\xe5\xad\x98",
    b"| ",
    b"# ",
    b"step 12 mem 3.5GB\n",
    b"{" * 50,
    b"(" * 300,
    b"Tried to allocate ",
    b"GPU 0 has a total capacity of ",
    b"Process 1 has ",
    b"GiB",
    b";" * 100,
    b" " * 3000,
)


def mutated(number: int) -> bytes:
    """An input by its number; the same number is the same input."""
    rng = random.Random(number)
    data = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 5)):
        data = rng.choice(_MUTATIONS)(data, rng)[: 1 << 16]
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _truncate(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    return data[start:end]


def _interleave(data: bytes, rng: random.Random) -> bytes:
    ours, theirs = data.splitlines(keepends=True), rng.choice(SEEDS).splitlines(keepends=True)
    lines = []
    while ours or theirs:
        lines.append((ours or theirs).pop(0) if rng.random() < 0.5 else (theirs or ours).pop(0))
    return b"".join(lines)


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(_PIECES) + data[at:]


def _renumber(data: bytes, rng: random.Random) -> bytes:
    words = data.split(b" ")
    places = [index for index, word in enumerate(words) if word[:1].isdigit()]
    if places:
        words[rng.choice(places)] = rng.choice(_NUMBERS)
    return b" ".join(words)


def _double(data: bytes, rng: random.Random) -> bytes:
    return data * rng.randint(2, 5)


def _recode(data: bytes, rng: random.Random) -> bytes:
    return data.decode("utf-8", "replace").encode(
        rng.choice(["utf-16", "utf-16-le", "utf-32", "gbk", "utf-7"]), "replace"
    )


def _wrap(data: bytes, rng: random.Random) -> bytes:
    width, prefix = rng.randint(20, 100), rng.choice([b"", b"# ", b"> ", b"    "])
    return b"\n".join(prefix + data[at : at + width] for at in range(0, len(data), width))


_MUTATIONS = (_flip, _truncate, _interleave, _insert, _renumber, _double, _recode, _wrap)
