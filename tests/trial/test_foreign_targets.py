"""Targets as others write them: what their objects do in our hands is theirs, and named with their line."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest

from oomdoctor.request import build_request
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.probe import engine_for

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

    from running import Run

pytestmark = pytest.mark.null_gpu

MODEL = """
import torch
from torch import nn


def build_model():
    return nn.Linear(64, 64)


def make_batch(batch_size):
    return torch.randn(batch_size, 64)


def training_step(model, batch):
    return model(batch).mean()
"""


def _probe(oomdoctor_here: Run, tmp_path: Path, text: str, *options: str) -> CompletedProcess[str]:
    (tmp_path / "model.py").write_text(text)
    return oomdoctor_here("probe", "model.py", "--target-batch", "512", "--capacity", "256MiB", "--json", *options)


def _maximum(ended: CompletedProcess[str]) -> int:
    assert ended.returncode == 0, ended.stderr
    return int(json.loads(ended.stdout)["result"]["micro_batch"]["maximum"])


SMALL_DATA = """

def make_batch(batch_size):
    data = torch.utils.data.TensorDataset(torch.randn(200, 64))
    return next(iter(torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)))[0]
"""
PACKED_DATA = """

def make_batch(batch_size):
    lengths = [1 + index % 7 for index in range(200)][:batch_size]
    return torch.randn(sum(lengths), 64), torch.tensor([0, *lengths]).cumsum(0)


def training_step(model, batch):
    return model(batch[0]).mean()
"""


def test_a_data_set_smaller_than_the_batch_is_no_batch(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A loader over 200 samples gives 200 at every larger size: that such a size fits would be a wrong answer."""
    ended = _probe(oomdoctor_here, tmp_path, MODEL + SMALL_DATA)
    assert ended.returncode == 2
    assert "`make_batch(512)` returned 200 samples" in ended.stderr
    assert "repeat" in ended.stderr


def test_a_batch_of_pairs_is_one(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A file that rounds an odd size down has more samples for a larger one, and is no small data set."""
    pairs = "\n\ndef make_batch(batch_size):\n    return torch.randn(max(2, batch_size // 2 * 2), 64)\n"
    assert _maximum(_probe(oomdoctor_here, tmp_path, MODEL + pairs, "--target-batch", "511")) == 511


def test_a_packed_batch_that_stops_growing_is_no_batch(oomdoctor_here: Run, tmp_path: Path) -> None:
    """No dimension of a packed batch is its size; two sizes with the same tensors are seen all the same."""
    ended = _probe(oomdoctor_here, tmp_path, MODEL + PACKED_DATA, "--target-batch", "4096")
    assert ended.returncode == 2
    assert "gave tensors of the same sizes" in ended.stderr
    assert _maximum(_probe(oomdoctor_here, tmp_path, MODEL + PACKED_DATA, "--target-batch", "200")) == 200


@pytest.mark.parametrize(
    "returned", ['{"loss": loss, "log": {"train_loss": loss}}', "types.SimpleNamespace(loss=loss, logits=batch)"]
)
def test_a_step_may_return_its_loss_among_other_things(oomdoctor_here: Run, tmp_path: Path, returned: str) -> None:
    """As Lightning's do, or an output with a `loss`; what else it holds is let go of before the backward."""
    step = f"""
import types


def training_step(model, batch):
    loss = model(batch).mean()
    return {returned}
"""
    assert _maximum(_probe(oomdoctor_here, tmp_path, MODEL + step)) == 512


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("class Stop(BaseException): pass\n    raise Stop('enough')", "Stop: enough`"),
        ("raise KeyboardInterrupt", "raised `KeyboardInterrupt`"),
        ("raise SystemExit(3)", "called exit with 3"),
        ("exit('done')", "called exit with 'done'"),
    ],
)
def test_whatever_a_step_raises_is_named(oomdoctor_here: Run, tmp_path: Path, raised: str, said: str) -> None:
    """Only `exit` is called exit; every other exception has its name and its line."""
    ended = _probe(oomdoctor_here, tmp_path, f"{MODEL}\n\ndef training_step(model, batch):\n    {raised}\n")
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "training step" in ended.stderr
    assert "model.py" in ended.stderr.partition("training step")[2]


ATTRIBUTES = """

class AttrDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def make_batch(batch_size):
    return AttrDict(x=torch.randn(batch_size, 64), nested=AttrDict(y=torch.randn(batch_size, 64)))


def training_step(model, batch):
    assert isinstance(batch, AttrDict) and isinstance(batch.nested, AttrDict)
    return AttrDict(loss=model(batch.x + batch.nested.y).mean()) if {wraps} else model(batch.x).mean()
"""
NAMESPACE = """
import types


def make_batch(batch_size):
    return types.SimpleNamespace(x=torch.randn(batch_size, 64), more=[types.SimpleNamespace(y=torch.randn(3))])


def training_step(model, batch):
    return model(batch.x).mean() + batch.more[0].y.mean()
"""


@pytest.mark.parametrize("batch", [ATTRIBUTES.format(wraps=True), ATTRIBUTES.format(wraps=False), NAMESPACE])
def test_batches_of_other_kinds_are_placed(oomdoctor_here: Run, tmp_path: Path, batch: str) -> None:
    """A dict whose keys are attributes, and a namespace, in nests too."""
    assert _maximum(_probe(oomdoctor_here, tmp_path, MODEL + batch)) == 512


def test_an_object_that_raises_in_our_hands_is_named(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A batch whose items cannot be listed fails as the target's, with its line."""
    batch = """

class Lazy(list):
    def __iter__(self):
        raise LookupError("no data")


def make_batch(batch_size):
    return Lazy([torch.randn(batch_size, 64)])
"""
    ended = _probe(oomdoctor_here, tmp_path, MODEL + batch)
    assert ended.returncode == 2
    assert "LookupError: no data" in ended.stderr
    assert 'raise LookupError("no data")' in ended.stderr


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("with torch.device('meta'):\n        return nn.Linear(64, 64)", "meta"),
        ("return Odd(64, 64, 'to')", "no device for me"),
        ("return Odd(64, 64, 'train')", "no device for me"),
    ],
)
def test_a_model_that_cannot_be_placed_is_named(oomdoctor_here: Run, tmp_path: Path, model: str, said: str) -> None:
    """One left on meta, and one whose `to` or `train` raises, is the target's error with a hint or its line."""
    text = f"""
{MODEL}

class Odd(nn.Linear):
    def __init__(self, a, b, refused):
        super().__init__(a, b)
        self.refused = refused

    def to(self, *args, **kwargs):
        if self.refused == "to":
            raise ValueError("no device for me")
        return super().to(*args, **kwargs)

    def train(self, mode=True):
        if self.refused == "train":
            raise ValueError("no device for me")
        return super().train(mode)


def build_model():
    {model}
"""
    ended = _probe(oomdoctor_here, tmp_path, text)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "model.py" in ended.stderr if "Odd" in model else "to_empty" in ended.stderr


def test_a_model_that_is_placed_already_may_refuse_to_be_moved(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A quantised model of a library is on the GPU from the beginning, and raises where it is moved again."""
    text = f"""
{MODEL}

class Quantised(nn.Linear):
    def to(self, *args, **kwargs):
        raise ValueError("`.to` is not supported for 4-bit models")


def build_model():
    with torch.device("cuda"):
        return Quantised(64, 64)
"""
    assert _maximum(_probe(oomdoctor_here, tmp_path, text)) == 512


WRAPPED = """
import torch.utils._pytree as pytree


class Packed(torch.Tensor):
    \"\"\"A parameter that holds its bytes in two tensors, as quantised ones do.\"\"\"

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32, device=values.device)

    def __init__(self, values, scale):
        self.values, self.scale = values, scale

    def __tensor_flatten__(self):
        return ["values", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, _, size, stride):
        return cls(inner["values"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default, torch.ops.aten.clone.default):
            device = (kwargs or {}).get("device", args[0].values.device)
            return cls(args[0].values.to(device), args[0].scale.to(device))
        opened = lambda item: item.values.float() * item.scale if isinstance(item, cls) else item
        return function(*pytree.tree_map(opened, args), **pytree.tree_map(opened, kwargs or {}))


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        packed = Packed(torch.zeros(64, 64, dtype=torch.int8), torch.ones(64, 1))
        self.base = nn.Parameter(packed, requires_grad=False)
        self.adapter = nn.Linear(64, 64)

    def forward(self, x):
        return self.adapter(x) + x @ (self.base.values.float() * self.base.scale)


def build_model():
    return Adapted()
"""


def test_parameters_without_a_storage_are_counted(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Of a parameter that wraps others, those are weighed: 4,096 bytes and 64 scales beside the adapter."""
    ended = _probe(oomdoctor_here, tmp_path, MODEL + WRAPPED)
    assert _maximum(ended) == 512
    assert json.loads(ended.stdout)["result"]["weights_bytes"] == 64 * 64 + 64 * 4 + (64 * 64 + 64) * 4


DROPS_BETWEEN_LAYERS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(64, 64, num_layers=2, dropout=0.5)

    def forward(self, batch):
        return self.recurrent(batch)[0]


def build_model():
    return Model()


def make_batch(batch_size):
    return torch.randn(16, batch_size, 64)


def training_step(model, batch):
    return model(batch).mean()
"""


def test_the_seed_of_cudnns_dropout_is_nobodys_read(tmp_path: Path, oomdoctor_here: Run) -> None:
    """PyTorch reads the seed that it draws itself: nothing of the user's depends on it, and nothing is warned of."""
    ended = _probe(oomdoctor_here, tmp_path, DROPS_BETWEEN_LAYERS)
    assert _maximum(ended) > 0
    assert json.loads(ended.stdout)["result"]["warnings"] == []


BENCHMARKED = """
import torch
from torch import nn

torch.backends.cudnn.benchmark = True


def build_model():
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def make_batch(batch_size):
    return torch.zeros(batch_size, 3, 64, 64), torch.zeros(batch_size, dtype=torch.long)


def training_step(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


def test_plans_that_are_only_benchmarked_are_no_ooms(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Under `cudnn.benchmark` PyTorch builds many plans without allocating for one; none of them ran out of memory."""
    ended = _probe(oomdoctor_here, tmp_path, BENCHMARKED, "--gpu", "rtx-3060-12gb")

    assert 1 <= _maximum(ended) < 512
    trials = json.loads(ended.stdout)["result"]["trials"]
    assert {trial["swallowed_ooms"] for trial in trials} == {0}


COMPILED = """
import torch
from torch import nn


def build_model():
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU())
    model.compile(dynamic=False)
    return model


def make_batch(batch_size):
    return torch.randn(batch_size, 256)


def training_step(model, batch):
    return model(batch).square().mean()
"""


@pytest.mark.slow
def test_a_ninth_size_is_compiled_as_the_first_was(forked_workers: None, tmp_path: Path) -> None:
    """Each size takes what it takes in a process of its own, although PyTorch compiles no more than eight in one."""
    del forked_workers
    (tmp_path / "model.py").write_text(COMPILED)
    request = build_request("model.py", directory=tmp_path, gpu="t4", engine="null")
    target = parse_reference("model.py", directory=tmp_path)
    with WorkerTrialSource(request, target, engine_for(request).environment) as source:
        source.load()
        sizes = [1024 * number for number in range(1, 11)]
        peaks = [
            source.run(size, micro_steps=1, allowed_bytes=source.capacity_bytes).peak_allocated_bytes for size in sizes
        ]

    grown = {after - before for before, after in itertools.pairwise(peaks[1:])}
    assert max(grown) - min(grown) < 1024 * 256
