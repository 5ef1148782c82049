"""What a program reads of integers and booleans that the host knows, and how many reads were of unknown values."""

from __future__ import annotations

import sys
from copy import deepcopy

import torch
from reporting import leave_with
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

from oomdoctor.agent import guard, known_values, null_gpu, unknown_reads

known_values.install()
unknown_reads.begin()
found: dict[str, object] = {}


def noted(name: str, value: object) -> None:
    """Note a value, and the reads of unknown values since the one before."""
    places = [read.text for read in unknown_reads.reads(noted.mark)]  # type: ignore[attr-defined]
    noted.mark = unknown_reads.mark()  # type: ignore[attr-defined]
    found[name] = [value, places]


noted.mark = 0  # type: ignore[attr-defined]

labels = torch.tensor([3, 0, 9, 4], pin_memory=False).cuda()
noted("range", [labels.min().item(), int(labels.max()), bool(labels.min() >= 0 and labels.max() < 10)])
grid = torch.arange(20, device="cuda").view(4, 5)
noted("columns", grid[:, grid[0] > 2].tolist())
noted("nonzero", (grid % 7 == 0).nonzero().tolist())
noted("unique", torch.unique(grid % 4).tolist())
noted("bincount", torch.bincount((grid % 4).flatten()).tolist())
noted("masked floats", list(torch.randn(4, 5, device="cuda")[grid > 10].shape))
grid[0] = 0
grid[1].add_(5)
grid.index_put_((torch.tensor([3]).cuda(), torch.tensor([0]).cuda()), torch.tensor(99).cuda())
noted("written", grid.tolist())
noted("reduced", [grid.sum().item(), grid.cumsum(0)[-1].tolist(), grid.argmax().item(), grid.sort()[0][3].tolist()])
noted("joined", torch.cat([labels, torch.full((2,), 7, device="cuda"), torch.zeros_like(labels)]).tolist())
degree = torch.zeros(10, dtype=torch.long, device="cuda")
noted("degree", degree.scatter_add_(0, labels, torch.ones_like(labels)).tolist())
several = [torch.arange(3, device="cuda"), torch.arange(2, device="cuda")]
torch._foreach_add_(several, 2)
noted("foreach", [one.tolist() for one in several])
del several
lengths = torch.tensor([5, 3, 2]).cuda()
packed = pack_padded_sequence(torch.randn(3, 5, 4, device="cuda"), lengths.cpu(), batch_first=True)
noted("packed", list(packed.data.shape))
noted("repeated", list(torch.randn(3, 2, device="cuda").repeat_interleave(lengths, dim=0).shape))
noted("one hot", list(torch.nn.functional.one_hot(lengths).shape))
with torch.inference_mode():
    inferred = torch.tensor([1, 2], device="cuda") + 1
    inferred.add_(1)
    noted("inference", inferred.tolist())
with torch.autocast("cuda", torch.bfloat16):
    noted("autocast", (torch.arange(3, device="cuda") * 2).tolist())
layer = torch.nn.BatchNorm1d(4).cuda()
layer(torch.randn(3, 4, device="cuda"))
noted("batches", layer.num_batches_tracked.item())
table = torch.nn.Embedding(10, 3).cuda()
torch.nn.functional.cross_entropy(table(labels), lengths.new_zeros(4)).backward()
noted("gradient", list(table.weight.grad.shape))
labels.copy_(torch.tensor([7, 8, 9, 1]))
noted("copied", labels.tolist())
noted("chosen by mask", torch.where(labels > 7, labels, -1).tolist() + torch.where(labels > 7, 1, 0).tolist())
ones, below = torch.ones(2, 3, device="cuda"), torch.full((2,), -1.5, device="cuda")
noted("filled", [ones[:, None].bool().all().item(), below.long().tolist()])
ones[0] = 2
noted("filled and written", ones.bool().all().item())
pair, total = (torch.zeros_like(labels), torch.zeros_like(labels)), torch.empty_like(labels)
torch.sort(labels, out=pair)
torch.add(pair[0], pair[1], out=total)
torch.cumsum(labels, 0, out=pair[0][:4])
noted("given out", [total.tolist(), pair[0].tolist(), torch.clamp(labels, 2, 8, out=pair[1]).tolist()])
noted("cut", [labels.clone().resize_(2).tolist(), labels.clone().resize_(2, 2).tolist()])
twins = deepcopy({"whole": grid, "part": grid[1], "layer": torch.nn.BatchNorm1d(4).cuda()})
twins["part"].add_(1)
noted("deep copies", [twins["whole"][1].tolist(), grid[1].tolist(), twins["layer"].num_batches_tracked.item()])
del pair, total, twins, ones, below
rows, columns, five = torch.arange(3).cuda(), torch.tensor([1, 3, 0]).cuda(), {"dtype": torch.long, "device": "cuda"}
placed = torch.zeros(3, 4, dtype=torch.long, device="cuda")
placed[rows, columns] = 1
placed[(rows[2:], columns[:1])] = 2
placed.index_put_((rows[:1], columns[1:2]), torch.scalar_tensor(5, **five))
noted("placed", placed.tolist())
placed[rows, columns] = torch.scalar_tensor(5, **five).add_(1)
noted("placed unknown", placed.tolist())
del placed, rows, columns
noted("powers", [list((10000 ** torch.rand(3, device="cuda")).shape), (2 ** torch.arange(3, device="cuda")).tolist()])


def refused(call: object) -> str | None:
    """The error of an index that is out of range; None where there is none."""
    try:
        call()  # type: ignore[operator]
    except IndexError as error:
        return str(error)
    return None


known, scores = torch.tensor([0, 9, -100, 3]).cuda(), torch.randn(4, 5, device="cuda")
labels_of_pixels = torch.full((2, 4, 4), 3, device="cuda")
noted(
    "bounds",
    {
        "table": refused(lambda: table(torch.arange(11, device="cuda"))),
        "negative": refused(lambda: table(torch.tensor([-1]).cuda())),
        "classes": refused(lambda: torch.nn.functional.cross_entropy(scores, known)),
        "ignored": refused(lambda: torch.nn.functional.cross_entropy(torch.randn(4, 10, device="cuda"), known)),
        "pixels": refused(
            lambda: torch.nn.functional.cross_entropy(torch.randn(2, 3, 4, 4, device="cuda"), labels_of_pixels)
        ),
        "select": refused(lambda: scores.index_select(1, torch.tensor([4, 5]).cuda())),
        "gather": refused(lambda: scores.gather(-1, torch.tensor([[5]]).cuda())),
        "expanded": refused(lambda: scores.gather(-1, torch.tensor([[5], [0]]).cuda().expand(-1, 3))),
        "indexed": refused(lambda: scores[:, torch.tensor([0, 5]).cuda()]),
        "from the end": refused(lambda: scores[torch.tensor([-1]).cuda()]),
        "item": refused(lambda: scores.clone().__setitem__(torch.tensor([9]).cuda(), 1)),
        "items": refused(lambda: scores.clone().__setitem__(torch.tensor([0, 9]).cuda(), 1)),
        "scatter": refused(lambda: torch.zeros(3, device="cuda").scatter_(0, torch.arange(4, device="cuda"), 1.0)),
        "one hot": refused(lambda: torch.nn.functional.one_hot(torch.arange(3, device="cuda"), 2)),
        "bag": refused(lambda: torch.nn.functional.embedding_bag(torch.arange(12).view(3, 4).cuda(), table.weight)),
        "empty": refused(lambda: table(torch.arange(0, device="cuda"))),
        "unknown": refused(lambda: table((torch.rand(4, device="cuda") * 99).long())),
    },
)

floats = torch.randn(10, device="cuda")
noted("unknown mask", list(floats[floats > 0.5].shape))
weights = torch.randn(6, 3, device="cuda", requires_grad=True)
weights[weights.detach().sum(1) > 0].sum().backward()
noted("unknown backward", list(weights.grad.shape))
noted("unknown nonzero", (floats > 1).nonzero().tolist())
noted("unknown unique", len(torch.unique(floats)))
if torch.__version__ >= "2.7":  # before, it reads whether one is negative, too
    noted("unknown repeats", len(torch.repeat_interleave((floats > 1).long())))
router = torch.randn(6, 4, device="cuda", requires_grad=True)
weights, chosen = router.softmax(-1).topk(2, dim=-1)
weights.sum().backward()
noted("chosen", chosen.tolist())
noted("counted choices", torch.bincount(chosen.flatten(), minlength=4).tolist())
mask = torch.nn.functional.one_hot(chosen, 4).permute(2, 1, 0)
slot, rows = torch.where(mask[2])
noted("rows of an expert", (rows + 0 * slot).cpu().tolist())
noted("largest", torch.randn(6, 4, device="cuda").max(1).indices.tolist())
noted("logged", (torch.randn(6, 4, device="cuda").argmax(1) == 0).sum().item())
noted("unknown any", bool((floats > 0).any()))
noted("unknown item", floats.sum().item())
products = torch.randn(4, 3, device="cuda", requires_grad=True)
before = null_gpu.zeros_read()
(products.prod() + products.prod(1).sum() + products.cumprod(0).sum()).backward()
noted("products", null_gpu.zeros_read() - before)
noted("compared", bool((products.grad == 0).any()))
labels.random_()
noted("random", labels.tolist())
grid.copy_(torch.randn(4, 5, device="cuda"))
noted("overwritten", grid.sum().item())
unknown, unfinished = floats > 0, torch.ones(10, dtype=torch.long, device="cuda")
stopped = unknown | torch.ones_like(unknown)
noted("decided", [bool(stopped.all()), (unfinished & ~stopped).max().item()])
noted("undecided", (unknown | torch.zeros_like(unknown)).tolist()[:2])
with FlopCounterMode(display=False) as counter:
    table(labels).sum().backward()
    lengths = lengths + 1
    waited = torch.ops._c10d_functional.wait_tensor(lengths)
noted("counted", counter.get_total_flops())
fixed = torch.nn.Parameter(torch.arange(3, device="cuda"), requires_grad=False)
noted("parameter", fixed.tolist())
bag = torch.nn.EmbeddingBag(1000, 64, sparse=True).cuda()
rows, offsets = torch.arange(300).remainder(50).cuda(), torch.arange(0, 300, 10).cuda()
bag(rows, offsets).sum().backward()
noted("sparse", [bag.weight.grad._nnz(), bag.weight.grad.coalesce()._nnz()])
matrix = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1, 0], [2, 2, 2, 1]]).cuda(), torch.ones(4).cuda(), (3, 4))
noted("sparse matrix", matrix.coalesce()._nnz())
guessed = torch.sparse_coo_tensor(torch.randint(30, (1, 6), device="cuda"), torch.ones(6).cuda(), (30,))
noted("unknown sparse", guessed.coalesce()._nnz())
crowded = torch.sparse_coo_tensor(torch.randint(2, (2, 6), device="cuda"), torch.ones(6).cuda(), (2, 2))
noted("crowded sparse", crowded.coalesce()._nnz())
effects = {read.text: read.effect for read in unknown_reads.reads()}

unknown_reads._MOST_READS, unknown_reads._LONGEST_SECONDS = 500, 0.0
is_done, error = torch.zeros(3, device="cuda") > 1, ""
try:
    while not is_done.all():
        is_done = torch.rand(3, device="cuda") > 1
except RuntimeError as raised:
    error = str(raised)

operators = known_values._INSTALLED[0]


def broken(*_: object, **__: object) -> None:
    """Fail, as nothing of ours should."""
    raise ValueError("ours")


operators._are_known = operators._keep = broken
noted("broken", [list((grid + 1).shape), list(torch.arange(3, device="cuda").shape), len(grid.nonzero())])
failures = sorted({failure.partition(":")[0] for failure in guard.FAILURES})

names = (
    "waited",
    "labels",
    "grid",
    "lengths",
    "degree",
    "packed",
    "inferred",
    "layer",
    "table",
    "floats",
    "weights",
    "products",
    "router",
    "chosen",
    "mask",
    "slot",
    "rows",
    "unknown",
    "unfinished",
    "stopped",
    "bag",
    "fixed",
    "offsets",
    "matrix",
    "guessed",
    "crowded",
    "is_done",
    "known",
    "scores",
    "labels_of_pixels",
)
for name in names:
    del globals()[name]
held = torch.cuda.memory_allocated()
leave_with(found=found, effects=effects, failures=failures, error=error, held=held, python=list(sys.version_info[:2]))
