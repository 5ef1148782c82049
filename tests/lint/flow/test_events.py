"""Which events a text has, however it is written."""

from __future__ import annotations

import pytest
from happening import event, events, lines

from oomdoctor.lint.flow.events import Action, Graph, Keeping, Kind, TensorDevice


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("loss.backward()", Action.BACKWARD),
        ("(loss / 4).backward()", Action.BACKWARD),
        ("scaler.scale(loss).backward()", Action.BACKWARD),
        ("accelerator.backward(loss)", Action.BACKWARD),
        ("self.fabric.backward(loss)", Action.BACKWARD),
        ("self.manual_backward(loss)", Action.BACKWARD),
        ("torch.autograd.backward(loss)", Action.BACKWARD),
        ("strategy.backward(loss)", Action.BACKWARD),
        ("torch.autograd.grad(loss, x)", Action.AUTOGRAD),
        ("optimizer.step()", Action.STEP),
        ("self.opt.step()", Action.STEP),
        ("optimizers[0].step()", Action.STEP),
        ("scaler.step(optimizer); scaler.scale(loss)", Action.STEP),
        ("scheduler.step()", Action.SCHEDULE),
        ("self.lr_scheduler.step(epoch)", Action.SCHEDULE),
        ("optimizer.zero_grad()", Action.ZERO_GRAD),
        ("model.zero_grad(set_to_none=True)", Action.ZERO_GRAD),
        ("p.grad = None", Action.ZERO_GRAD),
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", Action.CLIP),
        ("accelerator.clip_grad_norm_(model.parameters(), 1.0)", Action.CLIP),
        ("scaler.unscale_(optimizer)", Action.UNSCALE),
        ("scaler.update()", Action.SCALER_UPDATE),
        ("model.eval()", Action.EVAL_MODE),
        ("net.train(False)", Action.EVAL_MODE),
        ("model.train()", Action.TRAIN_MODE),
        ("torch.load(path)", Action.LOAD),
        ("model.load_state_dict(state)", Action.LOAD_STATE),
        ("torch.cuda.empty_cache()", Action.EMPTY_CACHE),
        ("total += loss", Action.KEEP),
        ("losses.append(loss)", Action.KEEP),
        ("stats['loss'] = loss", Action.KEEP),
        ("self.last = loss", Action.KEEP),
        ("every = torch.cat([every, scores])", Action.KEEP),
        ("del loss", Action.FORGET),
        ("losses.clear()", Action.FORGET),
        ("torch.cat(outputs)", Action.COLLECT),
        ("loss.item()", Action.TO_HOST),
        ("float(loss)", Action.TO_HOST),
        ("scores.to('cpu')", Action.TO_HOST),
        ("next(batches)", Action.NEXT),
        ("model.requires_grad_(False)", Action.FREEZE),
        ("p.requires_grad = False", Action.FREEZE),
        ("x.requires_grad_()", Action.NEEDS_GRADIENT),
        ("torch.zeros(3, requires_grad=True)", Action.NEEDS_GRADIENT),
        ("model(x)", Action.FORWARD),
        ("self.model(x)", Action.FORWARD),
        ("model.module(x)", Action.FORWARD),
    ],
)
def test_each_form_is_its_event(line: str, action: Action) -> None:
    """A statement is the event that it is for training, whatever its names look like."""
    text = (
        "every = loss = scores = batches = 0\n"
        "def work(self, p, x):\n"
        "    loss = F.mse_loss(x, x)\n"
        f"    {line}\n"
        "    model.eval; loss.backward"
    )
    assert action in {found.action for found in events(text)}


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("frame.eval('a + b')", Action.EVAL_MODE),
        ("trainer.train()", Action.TRAIN_MODE),
        ("environment.step(action)", Action.STEP),
        ("profiler.step()", Action.STEP),
        ("np.load(path)", Action.LOAD),
        ("math.sqrt(x)", Action.FORWARD),
        ("model.parameters()", Action.FORWARD),
        ("scaler.fit(x)", Action.STEP),
    ],
)
def test_look_alikes_are_not(line: str, action: Action) -> None:
    """Pandas, environments, profilers and the like have methods of the same names."""
    text = f"import numpy as np\nimport math\ndef work(x):\n    {line}\n    loss.backward()"
    assert action not in {found.action for found in events(text)}


@pytest.mark.parametrize(
    ("code", "graph"),
    [
        ("value = model(x)", Graph.YES),
        ("value = F.cross_entropy(model(x), y)", Graph.YES),
        ("value = criterion(model(x), y)", Graph.YES),
        ("value = model(x).loss", Graph.YES),
        ("value = model(x)['loss'].mean() * 2", Graph.YES),
        ("value = sum([model(x), 1])", Graph.YES),
        ("value = torch.stack([model(x)]).sum()", Graph.YES),
        ("value = model(x).detach()", Graph.NO),
        ("value = model(x).item()", Graph.NO),
        ("value = float(model(x))", Graph.NO),
        ("value = model(x).data", Graph.NO),
        ("value = model(x).argmax(1)", Graph.NO),
        ("value = model(x).cpu()", Graph.YES),
        ("value = torch.zeros(3)", Graph.NO),
        ("value = 1.5", Graph.NO),
        ("value = helper(x)", Graph.UNKNOWN),
        ("value, other = model(x)", Graph.UNKNOWN),
        ("value = model(x) if flag else 0", Graph.UNKNOWN),
        ("with torch.no_grad():\n        value = model(x)", Graph.NO),
        ("with torch.set_grad_enabled(flag):\n        value = model(x)", Graph.UNKNOWN),
    ],
)
def test_what_hangs_on_a_graph(code: str, graph: Graph) -> None:
    """A value is said to hang on a graph only where it surely does."""
    text = f"def work(model, criterion, x, y, flag):\n    {code}\n    kept.append(value)\n    model.eval"
    assert event(f"{text}\n    optimizer.step()", Action.KEEP).value.graph is graph


def test_what_a_backward_is_made_of_hung_on_a_graph() -> None:
    """A loss out of an unknown function is known to have had a graph once backward is called on it."""
    kept = event("for x in loader:\n    loss = compute(x)\n    total.append(loss)\n    loss.backward()", Action.KEEP)
    assert kept.value.graph is Graph.YES


@pytest.mark.parametrize(
    ("code", "divided_by"),
    [
        ("loss = loss / k", ("k",)),
        ("loss /= args.steps", ("args.steps",)),
        ("loss = loss * (1 / k)", ("k",)),
        ("loss = loss.div(k)", ("k",)),
        ("loss = torch.div(loss, k)", ("k",)),
        ("loss = (loss + other) / k", ("k",)),
        ("loss = loss * k", ()),
    ],
)
def test_what_a_loss_is_divided_by(code: str, divided_by: tuple[str, ...]) -> None:
    """Every way to write a division is seen on the value that backward is called on."""
    text = (
        f"def work(model, x, y, k, args, other):\n    loss = F.mse_loss(model(x), y)\n    {code}\n    loss.backward()"
    )
    assert event(text, Action.BACKWARD).value.divided_by == divided_by


@pytest.mark.parametrize(
    ("code", "how", "target", "line"),
    [
        ("total += loss", Keeping.SUM, "total", 2),
        ("total = total + loss", Keeping.SUM, "total", 2),
        ("total = 0.9 * total + 0.1 * loss", Keeping.SUM, "total", 2),
        ("every.append(loss)", Keeping.APPEND, "every", 2),
        ("every += [loss]", Keeping.APPEND, "every", 2),
        ("inner += loss", Keeping.SUM, "inner", 4),
        ("stats['a'] += loss", Keeping.ITEM_SUM, "stats['a']", 2),
        ("stats.setdefault('a', []).append(loss)", Keeping.APPEND, "stats", 2),
        ("self.losses.append(loss)", Keeping.APPEND, "self.losses", 2),
    ],
)
def test_what_a_value_is_kept_in_outlives_loops(code: str, how: Keeping, target: str, line: int) -> None:
    """The outermost loop before which the target was there is told apart from those in which it is made anew."""
    text = f"""
    def work(self, model, loader, total, every, stats):
        for epoch in range(3):
            inner = 0
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                {code}
                loss.backward()
    """
    kept = event(text, Action.KEEP)
    assert (kept.how, kept.target) == (how, target)
    assert kept.outlives is not None
    assert kept.outlives.node.lineno - 3 == line + 1


def test_a_target_of_the_iteration_outlives_nothing() -> None:
    """What is made anew in each iteration does not grow."""
    text = (
        "def work(model, loader):\n"
        "    for x in loader:\n"
        "        total = 0\n"
        "        for part in x:\n"
        "            pass\n"
        "        total += model(x)\n"
        "        total.backward()"
    )
    assert event(text, Action.KEEP).outlives is None


def test_what_lies_on_the_gpu_and_what_was_brought_away() -> None:
    """A model's output lies where the model is, until it is brought to the host."""
    text = (
        "def work(model, loader):\n"
        "    model.eval()\n"
        "    for x in loader:\n"
        "        out.append(model(x)); out.append(model(x).cpu())"
    )
    assert [kept.value.device for kept in events(text, Action.KEEP)] == [TensorDevice.GPU, TensorDevice.CPU]


def test_a_call_is_followed_with_its_loops_and_conditions() -> None:
    """What a helper does happens where it is called: in the caller's loop, under the caller's condition."""
    text = """
    class Trainer:
        def __init__(self, model):
            self.model = nn.Linear(1, 1)
            self.rate = torch.optim.SGD(self.model.parameters())
        def fit(self, loader):
            for i, x in enumerate(loader, 1):
                self.one(x, i % 4 == 0)
        def one(self, x, last):
            self.model(x).sum().backward()
            if last:
                self.finish()
        def finish(self):
            self.rate.step()
    """
    step = event(text, Action.STEP)
    assert step.value.kind is Kind.OPTIMIZER
    assert [frame.function.name for frame in step.context.frames] == ["fit", "one", "finish"]
    (loop,) = step.context.loops
    assert (loop.counter, loop.start, loop.over_batches) == ("i", 1, True)
    (guard,) = step.context.guards_in(loop)
    assert guard.holds
    assert guard.values["last"].node is not None


def test_an_early_continue_guards_what_follows() -> None:
    """After `if ...: continue` the rest of the iteration runs under the opposite condition."""
    text = "for i, x in enumerate(loader):\n    loss.backward()\n    if i % 4:\n        continue\n    optimizer.step()"
    (guard,) = event(text, Action.STEP).context.guards
    assert (guard.holds, guard.left_by) == (False, "continue")
    assert event(text, Action.BACKWARD).context.guards == ()


def test_lines_are_those_of_the_text() -> None:
    """Events point at the call itself."""
    assert lines("loss = F.mse_loss(a, b)\nif x:\n    loss.backward()", Action.BACKWARD) == [2]
