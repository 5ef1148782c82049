"""Scripts that nobody meant: training scripts cut, doubled, with names and tokens swapped, and hostile pieces."""

from __future__ import annotations

import functools
import json
import keyword
import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from lint_cases import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable

LINT: Final = Path(__file__).parents[1] / "lint"
MOST_BYTES: Final = 200_000
"""Of a mutated script; those that are large on purpose are `GIANTS`."""

_TOKEN: Final = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\"[^\"\n]*\"|'[^'\n]*'|[^\w\s]|[ \t]+|\n")
_NAME: Final = re.compile(rf"\b(?!(?:{'|'.join(keyword.kwlist)})\b)[A-Za-z_]\w*")
_WORDS: Final = (
    "loss", "backward", "step", "zero_grad", "optimizer", "model", "self", "eval", "train", "no_grad", "torch",
    "load", "cycle", "retain_graph", "scaler", "unscale_", "accumulate", "enumerate", "range", "append", "detach",
    "item", "cpu", "loader", "scheduler", "DistributedDataParallel", "__init__", "super", "None",
)  # fmt: skip

PIECES: Final = (
    "\x00",
    "\ufeff",
    "\r",
    "\r\n",
    "\x0c",
    "\x1a",
    "\u2028",
    "\u202e",
    "\U0001d525",
    "é̂",
    "\t",
    "        ",
    "# -*- coding: utf-16 -*-\n",
    "# -*- coding: latin-1 -*-\n",
    "# -*- coding: no-such-thing -*-\n",
    "# noqa",
    "# noqa: OOM101,,OOM2",
    "# oomdoctor: noqa\n",
    "# type: ignore\n",
    "%matplotlib inline\n",
    "!pip install torch\n",
    "'''",
    '"""',
    "\\",
    "\\\n",
    "(",
    ")",
    "[" * 60 + "]" * 60,
    "(" * 250,
    "-" * 300 + "1\n",
    "not " * 150 + "x\n",
    "x" + ".a" * 500 + "\n",
    "x" + "[0]" * 200 + "\n",
    "f" + "(1)" * 150 + "\n",
    "f(" * 80 + ")" * 80 + "\n",
    "1" + "+1" * 900 + "\n",
    "lambda: " * 80 + "0\n",
    "await x\n",
    "yield x\n",
    "return\n",
    "print 'x'\n",
    "async def f(): yield await x\n",
    "async for x in y: pass\n",
    "match x:\n    case {'a': [1, *_], **r} if (y := r): pass\n",
    "try: pass\nexcept* E as e: raise\n",
    "x: int = (y := 3)\n",
    "def f(a, /, b, *c, d=1, **e): return f(*c, **e)\n",
    "class A(A, metaclass=A): x = A\n",
    "del self, model, loss\n",
    "global loss; loss = loss\n",
    "from . import *\n",
    "from .x import train as train\n",
    "import torch as torch, torch as loss\n",
    "self.self = self\n",
    "model = model(model)(model)\n",
    "loss = loss = loss.loss\n",
    "for loss in loss: loss += loss\n",
    "[x for x in x for x in x if x]\n",
    "a = b = c = d, *e = f\n",
    "with torch.no_grad() as (a, b), open(x) as f: pass\n",
    "x = 0x" + "f" * 300 + "\n",
    "x = 1e999j\n",
    "x = '\\N{BULLET}\\ud800'\n",
    "f'{x!r:{y}}' f'''{'''a'''}'''\n",
)
"""What is put in at a random place."""


@functools.cache
def seeds() -> tuple[str, ...]:
    """The scripts of the tests: those with mistakes, and those without."""
    return (*(path.read_text(encoding="utf-8") for path in sorted(LINT.glob("clean/*.py"))), *SCRIPTS.values())


def mutated(number: int, more: tuple[str, ...] = ()) -> tuple[str, bytes]:
    """A file by its number: its name and what is in it; the same number is the same file.

    Args:
        number: Which.
        more: Scripts to begin with, besides the tests' own.
    """
    rng = random.Random(number)
    text = rng.choice(more if more and rng.random() < 0.5 else seeds())
    mutations = MEANINGLESS if rng.random() < 0.6 else MUTATIONS
    for _ in range(rng.randint(1, 6)):
        text = rng.choice(mutations)(text, rng)[:MOST_BYTES]
    if rng.random() < 0.1:
        return "script.ipynb", _notebook(text, rng)
    return "script.py", _encoded(text, rng)


def _cut(text: str, rng: random.Random) -> str:
    start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return text[start:end] if rng.random() < 0.3 else text[:end]


def _delete(text: str, rng: random.Random) -> str:
    start = rng.randint(0, len(text))
    return text[:start] + text[start + rng.randint(1, 200) :]


def _insert(text: str, rng: random.Random) -> str:
    at = rng.randint(0, len(text))
    if rng.random() < 0.5:  # at a line's start more of it parses
        at = text.rfind("\n", 0, at) + 1
    return text[:at] + rng.choice(PIECES) + text[at:]


def _repeat_lines(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    start = rng.randrange(len(lines))
    block = lines[start : start + rng.randint(1, 12)]
    return "".join(lines[:start] + block * rng.choice((2, 2, 3, 30)) + lines[start:])


def _move_lines(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    start, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    block = lines[start : start + rng.randint(1, 6)]
    del lines[start : start + len(block)]
    lines[to:to] = block
    return "".join(lines)


def _indent(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    start = rng.randrange(len(lines))
    end = start + rng.randint(1, 8)
    inner = [("    " + line if rng.random() < 0.9 else line.lstrip()) for line in lines[start:end]]
    return "".join(lines[:start] + inner + lines[end:])


def _swap_tokens(text: str, rng: random.Random) -> str:
    tokens = _TOKEN.findall(text) or [""]
    for _ in range(rng.randint(1, 10)):
        a, b = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        tokens[a], tokens[b] = tokens[b], tokens[a]
    return "".join(tokens)


def _rename(text: str, rng: random.Random) -> str:
    """One name becomes another of the file, everywhere: what is left parses, and means nothing."""
    names = sorted(set(_NAME.findall(text))) or ["x"]
    old, new = rng.choice(names), rng.choice(names if rng.random() < 0.7 else _WORDS)
    return re.sub(rf"\b{old}\b", new, text)


def _shuffle_names(text: str, rng: random.Random) -> str:
    names = _NAME.findall(text) or ["x"]
    return _NAME.sub(lambda match: rng.choice(names) if rng.random() < 0.03 else match[0], text)


def _splice(text: str, rng: random.Random) -> str:
    """Functions of two scripts in one, which call each other by chance."""
    other = rng.choice(seeds())
    return text + "\n\n" + other if rng.random() < 0.5 else other + "\n\n" + text


def _call_around(text: str, rng: random.Random) -> str:
    """Each function calls others, at random, and itself."""
    names = re.findall(r"def (\w+)\(", text) or ["f"]

    def body(match: re.Match[str]) -> str:
        calls = "".join(f"{match[1]}    {rng.choice(names)}({rng.choice(names)}, {rng.choice(_WORDS)})\n" for _ in "ab")
        return f"{match[0]}{calls}"

    return re.sub(r"(?m)^([ ]*)(?:async )?def [^\n]*:\n", body, text)


def _change_text(text: str, rng: random.Random) -> str:
    changed = list(text)
    for _ in range(rng.randint(1, 8) if changed else 0):
        changed[rng.randrange(len(changed))] = chr(rng.choice((rng.randrange(128), rng.randrange(0x3000))))
    return "".join(changed)


MEANINGLESS: Final[tuple[Callable[[str, random.Random], str], ...]] = (_rename, _shuffle_names, _splice, _call_around)
"""After these a script mostly parses still, and does what nobody means: that is where the abstract run has to cope."""

MUTATIONS: Final[tuple[Callable[[str, random.Random], str], ...]] = (
    *MEANINGLESS,
    _cut,
    _delete,
    _insert,
    _insert,
    _repeat_lines,
    _move_lines,
    _indent,
    _swap_tokens,
    _change_text,
)


def _encoded(text: str, rng: random.Random) -> bytes:
    if rng.random() < 0.05:
        return text.encode(rng.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig", "cp037")), errors="replace")
    data = bytearray(text.encode(errors="surrogatepass"))
    for _ in range(rng.randint(1, 3) if data and rng.random() < 0.1 else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data.replace(b"\n", b"\r\n")) if rng.random() < 0.05 else bytes(data)


def _notebook(text: str, rng: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    cells = []
    while lines:
        count = rng.randint(1, 15)
        source: object = lines[:count] if rng.random() < 0.8 else "".join(lines[:count])
        cells.append({"cell_type": rng.choice(("code", "code", "code", "markdown")), "metadata": {}, "source": source})
        del lines[:count]
    data = json.dumps(
        {"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}, indent=rng.choice((1, None))
    )
    if rng.random() < 0.2:
        data = _delete(data, rng) if rng.random() < 0.5 else _swap_tokens(data, rng)
    return data.encode(errors="surrogatepass")


def _many(form: str, count: int) -> str:
    return "".join(form.format(i=i, j=i + 1, k=i // 2) for i in range(count))


_HEAD: Final = "import torch\n"
_LOOP: Final = (
    "for x in loader:\n    optimizer.zero_grad()\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"
)


def _nested(line: str, depth: int) -> str:
    return "".join("  " * i + line + "\n" for i in range(depth)) + "  " * depth + "pass\n"


GIANTS: Final[dict[str, Callable[[], str]]] = {
    "one line of 10 MB": lambda: _HEAD + "x = [" + "1, " * 3_400_000 + "]\n",
    "one text of 10 MB": lambda: _HEAD + "x = '" + "loss.backward() " * 640_000 + "'\n",
    "one comment of 10 MB": lambda: _HEAD + "# noqa: OOM101 " * 700_000 + "\n",
    "one name of 10 MB": lambda: _HEAD + "x" * 10_000_000 + " = 1\n",
    "10 MB of empty lines": lambda: _HEAD + "\n" * 10_000_000,
    "10 MB of blanks": lambda: _HEAD + " " * 10_000_000 + "\n",
    "10 MB of NULs": lambda: _HEAD + "\0" * 10_000_000,
    "brackets in one another": lambda: _HEAD + "x = " + "(" * 100_000 + ")" * 100_000 + "\n",
    "brackets that stay open": lambda: _HEAD + "x = " + "[" * 100_000,
    "lists in one another": lambda: _HEAD + "x = " + "[" * 90 + "]" * 90 + "\n" + _LOOP,
    "minus signs": lambda: _HEAD + "x = " + "-" * 100_000 + "1\n",
    "a long sum": lambda: _HEAD + "x = 1" + " + loss" * 100_000 + "\n",
    "a sum that parses": lambda: _HEAD + _LOOP + "total = 0" + " + loss" * 2_500 + "\n",
    "a long chain of attributes": lambda: _HEAD + "x = a" + ".a" * 100_000 + "\n",
    "attributes that parse": lambda: _HEAD + _LOOP + "x = a" + ".backward" * 2_500 + "()\n",
    "calls of calls": lambda: _HEAD + "x = f" + "()" * 2_500 + "\n",
    "calls in one another": lambda: _HEAD + "x = " + "f(" * 95 + ")" * 95 + "\n",
    "conditions in one another": lambda: _HEAD + _nested("if x:", 95),
    "loops in one another": lambda: _HEAD + _nested("for x in x:", 19) + _LOOP,
    "handlers in one another": lambda: _HEAD + "".join("  " * i + "try:\n" for i in range(19)) + "  " * 19 + "pass\n",
    "elif": lambda: _HEAD + "if x: pass\n" + _many("elif x == {i}: y = {i}\n", 900) + _LOOP,
    "too many elif": lambda: _HEAD + "if x: pass\n" + _many("elif x == {i}: y = {i}\n", 100_000),
    "texts with texts in them": lambda: _HEAD + "x = " + "f'{" * 100_000 + "\n",
    "functions in a chain": lambda: _HEAD + _many("def f{i}(x):\n    loss.backward()\n    f{j}(x)\n\n", 5_000),
    "functions that call two": lambda: (
        _HEAD + _many("def f{i}(x):\n    loss.backward()\n    f{j}(x)\n    f{j}(f{j}(x))\n\n", 400)
    ),
    "functions that call all": lambda: (
        _HEAD
        + _many("def f{i}(x):\n    x.backward()\n    return " + "+".join(f"f{n}(x)" for n in range(60)) + "\n\n", 60)
    ),
    "functions in functions": lambda: (
        _HEAD + "".join("  " * i + f"def f{i}():\n" + "  " * (i + 1) + "loss.backward()\n" for i in range(90))
    ),
    "loops one after another": lambda: _HEAD + _LOOP * 700,
    "branches one after another": lambda: (
        _HEAD + "for x in loader:\n" + _many("    if a{i}: loss = loss + {i}\n", 8_000)
    ),
    "branches before a step": lambda: (
        _HEAD
        + "for i, x in enumerate(loader):\n    model(x).backward()\n"
        + _many("    if i % {j} == 0: continue\n", 3_000)
        + "    optimizer.step()\n"
    ),
    "names that hold names": lambda: _HEAD + _many("a{j} = a{i} + a{k}\n", 12_000) + "a9.backward()\n",
    "names that double": lambda: _HEAD + "a0 = model(x)\n" + _many("a{j} = (a{i}, a{i}, a{i})\n", 3_000),
    "tuples that double": lambda: _HEAD + "def f(a):\n    return (a, a), (a, a)\n" + "a = f(a)\n" * 2_000 + _LOOP,
    "many classes": lambda: _HEAD + _many("class C{j}(C{i}):\n    def step(self): self.loss.backward()\n", 3_000),
    "a class that is its own base": lambda: _HEAD + "class A(B): pass\nclass B(A): pass\nB().step()\n" * 500,
    "many handlers": lambda: (
        _HEAD
        + _many("try:\n    model(x{i})\nexcept RuntimeError as e:\n    if 'out of memory' in str(e): y{i} = 1\n", 2_500)
    ),
    "many imports": lambda: _HEAD + _many("from .m{i} import f{i}\nf{i}(loss)\n", 5_000),
    "many noqa": lambda: _HEAD + _many("x{i} = 1  # noqa: OOM{i}, {j} E{k}\n", 20_000),
    "many decorators": lambda: _HEAD + "@torch.no_grad()\n" * 3_000 + "def f(): loss.backward()\n",
    "a long with": lambda: _HEAD + "with " + ", ".join(["torch.no_grad()"] * 3_000) + ":\n    model(x)\n",
    "a large dictionary": lambda: _HEAD + "x = {" + _many("'k{i}': loss, ", 20_000) + "}\n" + _LOOP,
    "one statement on 40,000 lines": lambda: _HEAD + "x = f(\n" + _many("    a{i},\n", 40_000) + ")\n",
}
"""What is large, or deep, or branches out: by name, made when it is asked for."""
