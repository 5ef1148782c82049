"""Write `oomdoctor/engines/trace/refused_types.toml`: the types of tensors for which CUDA has no kernel, by operator.

`python tests/bench/refused_types.py` calls every operator of PyTorch's own tests with tensors of each type on a null
GPU, where PyTorch chooses kernels as on a GPU. A row is kept where an operator refuses a type whatever else it is
given. Needs a CUDA build of torch and `expecttest`, which PyTorch's tests import.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.installed import find_torch
from oomdoctor.engines.null_gpu.library import environment
from oomdoctor.engines.trace import refused_types

SAMPLES = 12
"""Calls of each operator, with each type."""
HEAD = """\
# Types of tensors for which CUDA has no kernel, by operator. Written by tests/bench/refused_types.py.
#
# says: PyTorch's error, with `{type}` where it names the type. types: those it says it of. operators: below `aten::`.
"""

Found = dict[str, dict[str, set[str]]]
"""What an operator said, by its name and the type of its first tensor; nothing where it ran."""


def observed() -> Found:
    """Return what operators say of tensors of each type; runs on the null GPU."""
    found: Found = defaultdict(lambda: defaultdict(set))
    for info in op_db():
        for sample in _samples(info):
            for dtype in refused_types.TYPES:
                _call(found, info.op, sample, dtype)
                if info.inplace_variant:
                    _call(found, partial(_in_place, info.inplace_variant), sample, dtype)
    return found


def op_db() -> list[Any]:
    """Return what PyTorch's tests know of its operators; takes seconds to import."""
    from torch.testing._internal.common_methods_invocations import op_db as known

    return [info for info in known if torch.float32 in info.dtypes]


def _samples(info: Any) -> list[Any]:
    try:
        return list(itertools.islice(info.sample_inputs("cpu", torch.float32), SAMPLES))
    except (RuntimeError, ModuleNotFoundError):
        return []  # the host cannot make them


def _in_place(method: Any, tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
    return method(tensor.detach(), *args, **options)


def _call(found: Found, function: Any, sample: Any, dtype: torch.dtype) -> None:
    given, args = _of_type(sample.input, dtype), _of_type(sample.args, dtype)
    options = {name: _of_type(value, dtype) for name, value in sample.kwargs.items()}
    with suppress(Exception), Watch(found):  # most combinations are refused, each in its way
        outputs = [leaf for leaf in tree_leaves(function(given, *args, **options)) if leaf.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def _of_type(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        typed = value.detach().to(dtype if value.dtype is torch.float32 else value.dtype).cuda()
        return typed.requires_grad_(typed.is_floating_point())
    return type(value)(_of_type(one, dtype) for one in value) if type(value) in (list, tuple) else value


class Watch(TorchDispatchMode):
    """Notes what each operator says."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and note what it says."""
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        counts = bool(given) and refused_types.needs_kernel(operator, given)
        said = self._found[operator.name()][str(given[0].dtype)[6:]] if counts else set()
        try:
            result = operator(*args, **(kwargs or {}))
        except NotImplementedError as error:
            said.add(str(error).partition("\n")[0])
            raise
        said.add("")
        return result


def table(found: Found) -> str:
    """Return the table of what refuses a type in all that was seen of it."""
    rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, said_of in sorted(found.items()):
        for dtype, said in sorted(said_of.items()):
            text = min(said, default="")
            if not (text and name.startswith("aten::") and dtype in refused_types.CALLED) or "Could not run" in text:
                continue
            called = refused_types.CALLED[dtype]
            rows[re.sub(rf"\b{called}\b", "{type}", text)][name.removeprefix("aten::")].append(dtype)
    blocks: list[str] = []
    for says, types_by_name in sorted(rows.items()):
        names_by_types: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, types in types_by_name.items():
            names_by_types[tuple(types)].append(name)
        blocks += [
            f"[[refusal]]\nsays = {json.dumps(says)}\ntypes = {json.dumps(types)}\noperators = {json.dumps(names)}\n"
            for types, names in names_by_types.items()
        ]
    return "\n".join([HEAD, *blocks])


def main() -> None:
    """Start this file again on the null GPU, and write the table of what it saw."""
    build = find_torch()
    if build is None:
        sys.exit("there is no torch")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "found.json")
        subprocess.run(
            [sys.executable, "-W", "ignore", __file__, str(path)],
            env=environment(find_card("rtx-4090"), build, {**os.environ}),
            check=True,
        )
        found = {
            name: {dtype: set(said) for dtype, said in said_of.items()}
            for name, said_of in json.loads(path.read_text(encoding="utf-8")).items()
        }
    refused_types.PATH.write_text(table(found), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        seen = {name: {dtype: sorted(said) for dtype, said in of.items()} for name, of in observed().items()}
        Path(sys.argv[1]).write_text(json.dumps(seen), encoding="utf-8")
    else:
        main()
