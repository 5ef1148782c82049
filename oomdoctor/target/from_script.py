"""Targets out of training scripts: the parts of a script that make its model, batch and loss, by its text alone.

The script is read and never run. What is taken over is taken as it stands, with all that it needs; where one part
cannot be told from the text, the whole is refused with the reason, for a target that is half right answers wrongly.
"""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
import warnings
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import TargetError
from oomdoctor.target.script import LARGEST_SOURCE, Scope, ScriptText, UnclearScriptError, command_hint, names_in, root

if TYPE_CHECKING:
    from pathlib import Path

_WRAPPERS: Final = frozenset({"DistributedDataParallel", "DDP", "DataParallel", "FullyShardedDataParallel", "FSDP"})
_PASSED_THROUGH: Final = frozenset({"enumerate", "tqdm", "track", "iter", "list", "log_every"})
_MOVES: Final = frozenset({"to", "cuda", "to_device"})
_CONTEXTS: Final = frozenset({"autocast", "accumulate", "record_function", "no_sync", "nullcontext"})
_NO_RESULT: Final = frozenset({"train", "eval", "zero_grad", "to", "cuda", "requires_grad_"})
_TYPES: Final = frozenset({"float16", "bfloat16", "float32", "float64", "half", "long", "int64", "uint8", "bool"})


def target_of_script(path: Path) -> str:
    """Return a file with the functions of a target, made of a training script's own lines.

    Raises:
        TargetError: There is no such file, it cannot be read, or the text does not show one of the parts.
    """
    try:
        source = _read(path).decode("utf-8-sig")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except OSError as error:
        raise TargetError(
            f"`{path}` cannot be read: {error.strerror}",
            hint="name a training script, or a shorthand such as `timm:resnet50`",
        ) from None
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise TargetError(f"`{path}` is not Python: {error}", hint="name a training script") from None
    script = ScriptText(tree, source)
    if {"build_model", "make_batch"} <= {name for one in tree.body for name in script.bound(one)}:
        raise TargetError(f"`{path}` is a target already", hint=f"`oomdoctor probe {shlex.quote(str(path))}`")
    try:
        return _Parts(script).source(path.name)
    except UnclearScriptError as error:
        raise TargetError(
            f"no target can be made of `{path}`: {error}", hint=command_hint(path, str(path), tree)
        ) from None


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        source = stream.read(LARGEST_SOURCE + 1)
    if len(source) > LARGEST_SOURCE:
        hint = "name a training script"
        raise TargetError(f"`{path}` is larger than {LARGEST_SOURCE >> 20} MiB, which no script is", hint=hint)
    return source


class _Parts:
    """The parts of one script.

    Args:
        script: The script.

    Raises:
        UnreadableError: One cannot be told.
    """

    def __init__(self, script: ScriptText) -> None:
        self._script = script
        self._needed: dict[ast.stmt, Scope] = {}
        self._imports_torch = False
        self._optimizer, self._optimizer_scope, name = _optimizer(script)
        self._model = script.resolved(name, self._optimizer_scope)
        self._own_name = name
        self._loop, self._loss, self._loop_scope = _loop(script)

    def source(self, name: str) -> str:
        """Return the file."""
        model = self._model_part()
        batch, step = self._batch_part()
        optimizer = self._optimizer_part()
        shared = "\n".join(self._shared())
        about = [f"Target of oomdoctor, of the parts of `{name}` that train; see that its batch is the largest."]
        about += _precision(self._script, self._loop, self._loop_scope)
        title = f'"""{about[0]}"""\n' if len(about) == 1 else '"""{}\n\n{}\n"""\n'.format(*about)
        text = "\n\n\n".join(part for part in (title + "\n" + shared, model, batch, step, optimizer) if part)
        text = re.sub(r"\n{4,}", "\n\n\n", text) + "\n"
        try:
            compile(text, name, "exec")
        except SyntaxError as error:  # such as a `continue` of the loop
            raise UnclearScriptError(f"its loop cannot be a function: {error.msg}") from None
        return text

    def _model_part(self) -> str:
        name, scope = self._model
        statements = []
        for statement in self._script.definitions(name, scope):
            made = _Plain(self._script).visit(ast.parse(ast.unparse(statement)).body[0])
            if not isinstance(made, ast.Assign) or not _is_wrapping(made.value, name):
                statements.append(made)
        statements += [one for one in self._script.changes(name, scope) if not _is_call(one, _NO_RESULT)]
        self._take([one for one in statements if isinstance(one, ast.stmt)], scope, {name})
        return _function("build_model()", [*map(ast.unparse, statements), f"return {name}"])

    def _batch_part(self) -> tuple[str, str]:
        """Return `make_batch` and `training_step`."""
        statements = _slice(self._script, self._loop, self._loss)
        model = next(
            (
                name
                for one in statements
                for name in names_in(one)
                if self._script.resolved(name, self._loop_scope) == self._model
            ),
            None,
        )
        if model is None:
            raise UnclearScriptError("the loss is not computed from the model that the optimizer trains")
        target, items = _iterated(self._loop)
        if isinstance(items, ast.Call) and isinstance(items.func, ast.Name) and items.func.id in ("range", "trange"):
            made, statements, bound = self._made_in_loop(statements, model)
        else:
            bound = ast.unparse(target)
            made = self._loaded(items)
        known = {model, *(one.id for one in ast.walk(ast.parse(bound)) if isinstance(one, ast.Name))}
        plain = [ast.parse(ast.unparse(one)).body[0] for one in statements]
        plain = [_Plain(self._script).visit(one) for one in plain if not _is_scaling(one, self._loss)]
        plain = [one for one in plain if not _is_identity(one)]
        self._take(plain, self._loop_scope, known)
        lines = ([] if bound == "batch" else [f"{bound} = batch"]) + [ast.unparse(one) for one in plain]
        return made, _function(f"training_step({model}, batch)", [*lines, f"return {self._loss}"])

    def _made_in_loop(self, statements: list[ast.stmt], model: str) -> tuple[str, list[ast.stmt], str]:
        """Return `make_batch` from what the loop itself makes, the rest of the loop, and the names of the batch."""
        made, rest, later = [], [], {model}
        for statement in statements:
            if names_in(statement) & later:
                rest.append(statement)
                later |= set(self._script.bound(statement))
            else:
                made.append(statement)
        names = {name for one in made for name in self._script.bound(one)}
        used = sorted({name for one in rest for name in names_in(one)} & names)
        sized = _Sized()
        plain = [sized.visit(_Plain(self._script).visit(ast.parse(ast.unparse(one)).body[0])) for one in made]
        if not used or not sized.found:
            raise UnclearScriptError("the loop makes its batch, and no name in it is called as a batch size")
        self._take(plain, self._loop_scope, {"batch_size"})
        bound = ", ".join(used)
        return _function("make_batch(batch_size)", [*map(ast.unparse, plain), f"return {bound}"]), rest, bound

    def _loaded(self, items: ast.expr) -> str:
        """Return `make_batch` from the data set of a loader."""
        call, scope = self._script.value(items, self._loop_scope)
        if not isinstance(call, ast.Call) or _called(call) != "DataLoader":
            raise UnclearScriptError(
                f"the loop goes over `{ast.unparse(items)}`, which is no `DataLoader` of the script"
            )
        given = {one.arg: one.value for one in call.keywords}
        dataset = given.get("dataset", call.args[0] if call.args else None)
        if dataset is None:
            raise UnclearScriptError("the `DataLoader` is not given its data set by name")
        self._take([ast.Expr(dataset)], scope, set())
        collate = given.get("collate_fn")
        if collate is not None:
            self._take([ast.Expr(collate)], scope, set())
        collated = "torch.utils.data.default_collate" if collate is None else ast.unparse(collate)
        self._imports_torch = True
        name, lines = ast.unparse(dataset), []
        if not isinstance(dataset, ast.Name):
            # Not `dataset = dataset["train"]`, which would read the function's own name.
            value, name = name, "samples" if "dataset" in names_in(dataset) else "dataset"
            lines = [f"{name} = {value}"]
        lines.append(f"return {collated}([{name}[index % len({name})] for index in range(batch_size)])")
        return _function("make_batch(batch_size)", lines)

    def _optimizer_part(self) -> str:
        self._take([ast.Expr(self._optimizer)], self._optimizer_scope, {self._own_name})
        return _function(f"build_optimizer({self._own_name})", [f"return {ast.unparse(self._optimizer)}"])

    def _take(self, statements: list[ast.stmt], scope: Scope, known: set[str]) -> None:
        """Take over everything that statements need, but for names that are known.

        Raises:
            UnreadableError: The text does not show where one is from, or it depends on the model.
        """
        bound = {name for one in statements for name in self._script.bound(one)}
        for name in sorted({name for one in statements for name in names_in(one)} - known - bound):
            if self._script.resolved(name, scope) == self._model:
                raise UnclearScriptError(f"`{name}` is used in a part that is made without the model")
            for statement, at in self._script.needed(name, scope):
                others = (one for one, place in self._needed.items() if place != at and name in self._script.bound(one))
                if any(others):
                    raise UnclearScriptError(f"`{name}` stands for several things that are needed")
                if statement not in self._needed:
                    self._needed[statement] = at
                    self._take([statement], at, set())

    def _shared(self) -> list[str]:
        """Return the lines that all functions share: those of the module, then those of its functions, in order."""
        needed = sorted(self._needed, key=lambda one: (self._needed[one] is not None, one.lineno, one.col_offset))
        imports = [one for one in needed if isinstance(one, ast.Import | ast.ImportFrom)]
        lines = [ast.unparse(one) for one in imports]
        if "import torch" not in lines and self._imports_torch:
            lines.insert(0, "import torch")
        for one in (one for one in needed if one not in imports):
            is_definition = isinstance(one, ast.FunctionDef | ast.ClassDef)
            lines += ["", ""] * is_definition + [self._script.text(one)] + [""] * is_definition
        return lines


def _function(header: str, lines: list[str]) -> str:
    return f"def {header}:\n" + textwrap.indent("\n".join(lines), "    ")


def _called(call: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_call(statement: ast.stmt, names: frozenset[str]) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _called(call) in names


def _is_wrapping(value: ast.expr, name: str) -> bool:
    """Return whether a model is made of itself for several processes, or by a library that prepares it."""
    is_own = isinstance(value, ast.Call) and name in names_in(value)
    return isinstance(value, ast.Name) or (is_own and _called(value) in _WRAPPERS | {"prepare", "compile"})  # type: ignore[arg-type]


def _is_scaling(statement: ast.stmt, loss: str) -> bool:
    """Return whether a statement divides the loss by the accumulation steps, which a trial does itself."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(left=ast.Name(id=left), op=ast.Div())):
            return name == left == loss
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Div()):
            return name == loss
    return False


def _is_identity(statement: ast.stmt) -> bool:
    """Return whether a statement gives names their own values, as one that only moved them does."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    return ast.unparse(statement.targets[0]).strip("()") == ast.unparse(statement.value).strip("()")


class _Plain(ast.NodeTransformer):
    """Takes out what places tensors: `.to(device)`, `.cuda()` and `device=`; a `.to` of a type stays."""

    def __init__(self, script: ScriptText) -> None:
        self._script = script

    def visit_Call(self, call: ast.Call) -> ast.AST:
        self.generic_visit(call)
        call.keywords = [one for one in call.keywords if one.arg != "device"]
        is_move = isinstance(call.func, ast.Attribute) and call.func.attr in _MOVES
        has_type = any(one.arg == "dtype" for one in call.keywords) or any(
            isinstance(one, ast.Attribute) and one.attr in _TYPES for one in call.args
        )
        return call.func.value if isinstance(call.func, ast.Attribute) and is_move and not has_type else call


class _Sized(ast.NodeTransformer):
    """Puts `batch_size` where a name is called as one."""

    def __init__(self) -> None:
        self.found = False

    def visit_Call(self, call: ast.Call) -> ast.AST:
        """Pass over what is called: `get_batch` is the name of a function, and of no size."""
        if isinstance(call.func, ast.Attribute):
            call.func.value = self.visit(call.func.value)
        call.args = [self.visit(argument) for argument in call.args]
        for keyword in call.keywords:
            keyword.value = self.visit(keyword.value)
        return call

    def visit_Name(self, name: ast.Name) -> ast.AST:
        return self._of(name, name.id)

    def visit_Attribute(self, attribute: ast.Attribute) -> ast.AST:
        return self._of(attribute, attribute.attr)

    def _of(self, node: ast.expr, name: str) -> ast.AST:
        from oomdoctor.target.literals import is_batch_size  # noqa: PLC0415 - beside what it belongs to

        if isinstance(getattr(node, "ctx", None), ast.Load) and is_batch_size(name):
            self.found = True
            return ast.Name("batch_size", ast.Load())
        return self.generic_visit(node)


def _optimizer(script: ScriptText) -> tuple[ast.Call, Scope, str]:
    """Return the call that makes the one optimizer, where it is, and the model's name there."""
    found = []
    for scope in script.scopes:
        for statement in script.statements(scope):
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                roots = {
                    one.func.value.id
                    for one in ast.walk(statement.value)
                    if isinstance(one, ast.Call)
                    and isinstance(one.func, ast.Attribute)
                    and one.func.attr in ("parameters", "named_parameters")
                    and isinstance(one.func.value, ast.Name)
                }
                if roots and _called(statement.value) not in ("sum", "list", "filter"):
                    found.append((statement.value, scope, roots))
    if not found:
        raise UnclearScriptError("it makes no optimizer of `model.parameters()` that can be seen")
    call, scope, names = found[0]
    if len(found) > 1 or len(names) > 1:
        raise UnclearScriptError("it makes several optimizers, or one over several models")
    return call, scope, names.pop()


def _loop(script: ScriptText) -> tuple[ast.For, str, Scope]:
    """Return the loop over batches, the loss's name and where both are."""
    found = []
    for scope in script.scopes:
        own = [one for one in script.statements(scope) if not isinstance(one, ast.FunctionDef | ast.ClassDef)]
        loops = [one for each in own for one in ast.walk(each) if isinstance(one, ast.For)]
        for loop in loops:
            inner = {one for each in loops if each is not loop and each in ast.walk(loop) for one in ast.walk(each)}
            calls = [one for one in ast.walk(loop) if isinstance(one, ast.Call) and _called(one) == "backward"]
            found += [(loop, _loss(call), scope) for call in calls if call not in inner]
    if not found:
        raise UnclearScriptError("it has no `for` loop over batches with a `backward()` in it")
    if len(found) > 1:
        raise UnclearScriptError("it calls `backward()` in several places")
    return found[0]


def _loss(call: ast.Call) -> str:
    """Return the name of the loss: `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`."""
    value: ast.AST = call.func.value if isinstance(call.func, ast.Attribute) else call
    for candidate in (*call.args, value):
        is_scaled = isinstance(candidate, ast.Call) and _called(candidate) == "scale" and candidate.args
        inner = candidate.args[0] if is_scaled else candidate  # type: ignore[attr-defined]
        inner = inner.left if isinstance(inner, ast.BinOp) else inner
        if isinstance(inner, ast.Name):
            return inner.id
    raise UnclearScriptError(f"the loss of `{ast.unparse(call)}` has no name")


def _precision(script: ScriptText, loop: ast.For, scope: Scope) -> list[str]:
    """Return a sentence on the autocast that a script's step runs under, which a probe has an option for."""
    blocks = [one for each in script.statements(scope) for one in ast.walk(each) if isinstance(one, ast.With)]
    around = [one for one in blocks if one in ast.walk(loop) or loop in ast.walk(one)]
    contexts = [item.context_expr for one in around for item in one.items]
    calls = [one for one in contexts if isinstance(one, ast.Call) and _called(one) == "autocast"]
    if not calls:
        return []
    types = [ast.unparse(one.value) for one in calls[0].keywords if one.arg in ("dtype", "fast_dtype")]
    types += [ast.unparse(one) for one in calls[0].args[1:2]]
    # What CUDA's autocast computes in unless it is told.
    kind = types[0] if types else "torch.float16"
    known = "`bf16`" if "bfloat16" in kind else "`fp16`" if "float16" in kind else f"what `{kind}` is"
    text = re.sub(r"[\"\\\\]", "'", ast.unparse(calls[0]))
    told = f"Its step runs under `{text}` there: give `--precision` {known}, without which it is asked about in fp32."
    return [textwrap.fill(told, 100, break_long_words=False, break_on_hyphens=False)]


def _iterated(loop: ast.For) -> tuple[ast.expr, ast.expr]:
    """Return what a loop binds of each batch, and what it goes over, without `enumerate` and progress bars."""
    target, items = loop.target, loop.iter
    while isinstance(items, ast.Call) and _called(items) in _PASSED_THROUGH and items.args:
        if _called(items) == "enumerate" and isinstance(target, ast.Tuple):
            target = target.elts[1]
        items = items.args[0]
    return target, items


def _slice(script: ScriptText, loop: ast.For, loss: str) -> list[ast.stmt]:
    """Return the statements of a loop that the loss is computed by, in order."""
    wanted, found = {loss}, []
    for statement in reversed(_unwrapped(loop.body)):
        if any(isinstance(one, ast.Call) and _called(one) == "backward" for one in ast.walk(statement)):
            continue
        if wanted & {*script.bound(statement), *_changed(statement)}:
            found.append(statement)
            wanted |= names_in(statement)
    if not found:
        raise UnclearScriptError(f"`{loss}` is not computed in the loop that it is used in")
    return found[::-1]


def _changed(statement: ast.stmt) -> set[str]:
    """Return the names whose parts a statement sets, or that it changes in place."""
    match statement:
        case ast.Assign(targets=targets):
            return {name for one in targets if not isinstance(one, ast.Name) and (name := root(one)) is not None}
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attribute)) as call) if attribute.endswith("_"):
            return {name for name in (root(call),) if name is not None}
    return set()


def _unwrapped(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements with those under `autocast` and the like in their place; a trial has options for these."""
    found = []
    for statement in statements:
        contexts = [item.context_expr for item in statement.items] if isinstance(statement, ast.With) else []
        names = [_called(one) for one in contexts if isinstance(one, ast.Call)]
        if isinstance(statement, ast.With) and set(names) & _CONTEXTS:
            found += _unwrapped(statement.body)
        else:
            found.append(statement)
    return found
