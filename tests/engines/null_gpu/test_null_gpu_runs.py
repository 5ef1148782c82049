"""PyTorch's CUDA builds on the null GPU: what they see, and that what people train with runs."""

from __future__ import annotations

import dataclasses
import os
import secrets
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from null_gpu_runs import CARD, GIB, MIB, OTHERS, PROGRAMS, answer, build_of, each_python, run

from oomdoctor.engines.null_gpu.library import environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.null_gpu, pytest.mark.timeout(600)]
CAPACITY = CARD.total_bytes - CARD.context_bytes


@each_python
def test_presents_the_chosen_card(python: str) -> None:
    """PyTorch sees the card's name, capability, limits and memory, and what the context holds is not free."""
    seen = answer("card.py", python=python)
    assert (seen["name"], seen["capability"]) == (CARD.name, list(CARD.compute_capability))
    assert (seen["total"], seen["sm_count"], seen["threads_per_sm"]) == (CARD.total_bytes, 128, 1536)
    assert (seen["warp"], seen["devices"]) == (32, 1)
    assert seen["l2"] in (CARD.l2_bytes, None)
    assert seen["shared"] in (CARD.shared_memory_per_block_bytes, None)
    assert seen["at_first"] == [CAPACITY, CARD.total_bytes]


@each_python
def test_takes_whole_segments_from_what_is_free(python: str) -> None:
    """A tensor of 3 MiB takes PyTorch's segment of 20 MiB, from the driver's account as well."""
    seen = answer("card.py", python=python)
    assert seen["reserved"] == 20 * MIB
    assert seen["with_three_mib"] == [CAPACITY - 20 * MIB, CARD.total_bytes]


@each_python
def test_the_capacity_changes_at_run_time(python: str) -> None:
    """A process can make its own card smaller, and PyTorch runs out of memory accordingly."""
    seen = answer("card.py", python=python)
    assert seen["capacity"] == GIB
    assert seen["after_change"] == [GIB - 20 * MIB, GIB + CARD.context_bytes]
    assert "Tried to allocate 2.00 GiB" in seen["message"]
    assert "this process has 420.00 MiB memory in use" in seen["message"]
    assert seen["one_gib_less_a_segment_fits"]


@each_python
def test_reads_zeros_from_the_device(python: str) -> None:
    """What comes back from the device is zeros, and pinned memory is known as such."""
    seen = answer("card.py", python=python)
    assert (seen["item"], seen["back_on_host"], seen["pinned"]) == (0, [0, 0, 0, 0], True)


@each_python
def test_trains_what_people_train(python: str) -> None:
    """Convolutions, attention, recurrent networks, mixed precision and checkpointing train without an unknown call."""
    done = answer("training.py", python=python)
    assert done["errors"] == {}
    assert done["unknown"] == []
    assert min(done["peaks"].values()) > 0
    assert done["peaks"]["checkpointed stack"] < 0.7 * done["peaks"]["stack"]


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0), (12, 0)])
def test_trains_on_every_generation(capability: tuple[int, int]) -> None:
    """Cards from Turing to Blackwell train the same things."""
    card = dataclasses.replace(CARD, compute_capability=capability)
    done = answer("training.py", card=card)
    assert (done["errors"], done["unknown"]) == ({}, [])


def test_trains_under_cudnn_benchmark() -> None:
    """`torch.backends.cudnn.benchmark` finds an algorithm for every convolution."""
    done = answer("training.py", "benchmark")
    assert (done["errors"], done["unknown"]) == ({}, [])


@each_python
def test_every_optimizer_steps(python: str) -> None:
    """Every optimizer of torch.optim steps, in its for-loop, foreach and fused implementation."""
    done = answer("optimizers.py", python=python)
    # Until 2.12 Adagrad takes the option and refuses it on CUDA, real or not.
    refused = {name for name, error in done["errors"].items() if "fused=True` requires all the params" in error}
    assert refused <= {"Adagrad {'fused': True}"}
    assert set(done["errors"]) == refused
    assert done["unknown"] == []
    assert {"AdamW {'fused': True}", "SGD {'foreach': False}", "Adafactor {}"} <= set(done["taken"])


@each_python
@pytest.mark.parametrize("expandable", [False, True])
def test_the_two_accounts_agree(python: str, tmp_path: Path, *, expandable: bool) -> None:
    """PyTorch's reserved bytes are the null GPU's used bytes, when full and when freed, in either kind of segment."""
    snapshot = tmp_path / "snapshot.pickle"
    seen = answer(
        "segments.py", str(snapshot), python=python, PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable}"
    )
    for moment in ("trained", "full", "freed"):
        reserved, used = seen[moment]
        assert reserved == used
    assert seen["capacity"] - 300 * MIB < seen["full"][1] <= seen["capacity"]
    assert seen["freed"][1] < 200 * MIB
    assert (seen["expandable"], seen["unknown"], seen["ooms"]) == (expandable, [], 1)
    assert seen["snapshot_bytes"] > 10_000


@each_python
def test_recurrent_networks_keep_what_was_measured(python: str) -> None:
    """The weight buffer is as large as the weights; reserve and workspace are what a real card was seen to take."""
    seen = answer("recurrent_sizes.py", python=python)
    for cell, reserve in {"LSTM": 736_000_000, "GRU": 864_000_000}.items():
        assert reserve <= seen[cell]["reserve"] <= reserve + 256  # which a newer cuDNN was seen to add
    for cell, workspace in {"LSTM": 17_730_560, "GRU": 13_169_920}.items():
        assert seen[cell]["weights"] == seen[cell]["parameters"]
        assert workspace <= seen[cell]["transient"]


@each_python
def test_unknown_calls_are_named_once(python: str) -> None:
    """A call that is not served fails, is named once on stderr and is listed; the process goes on."""
    done = run("unknown.py", python=python)
    assert done.returncode == 0, done.stderr
    seen = answer("unknown.py", python=python)
    assert seen["unknown"] == ["cusparseCreateCsr", "cudaIpcGetMemHandle"]
    assert done.stderr.count("oomdoctor null GPU: `cusparseCreateCsr` is not served\n") == 1
    assert done.stderr.count("oomdoctor null GPU: `cudaIpcGetMemHandle` is not served\n") == 1
    assert ["usparse" in error for error in seen["errors"]["multiply_sparse"]] == [True, True]
    assert "operation not supported" in seen["errors"]["share"][0]
    assert seen["still_works"] == 4


@each_python
def test_captures_cuda_graphs(python: str) -> None:
    """A captured step takes a private pool, in which its streams allocate; replaying it takes nothing more."""
    oldest = build_of(python).version.startswith("2.6")
    seen = answer("graphs.py", *([] if oldest else ["waits"]), python=python)
    assert seen["unknown"] == []
    assert seen["capturing"] == [True, True, False]
    assert seen["pool"] >= 40 * MIB + 512 * 1024 * 4
    assert seen["eager"] < seen["peak"] == seen["replayed"]
    assert seen["accounts"][0] == seen["accounts"][1]
    # The cuBLAS workspaces of the captured streams outlive the graph in 2.6.
    assert (seen["left"], seen["assumptions"]) == (2 * 20 * MIB if oldest else 0, ["cuda-graphs"])
    assert seen["callable"] > 2 * MIB
    assert [error.partition("failed")[2] for error in seen["errors"]] == [" due to a previous error during capture"] * (
        0 if oldest else 2
    )
    assert seen["released"] == [[], [7]]


@each_python
def test_transforms_and_decomposes(python: str) -> None:
    """A transform works in as much as its complex side, a short one in nothing since CUDA 13; decompositions run."""
    done = answer("decompositions.py", python=python)
    assert (done["errors"], done["unknown"]) == ({}, [])
    result, halved = 1024 * 64 * 8, 1024 * 33 * 8
    areas = 1 if int(done["cuda"].split(".")[0]) < 13 else 0  # of short ones
    assert done["peaks"] == {"fft": (1 + areas) * result, "rfft": (1 + areas) * halved, "fft2": 2 * result}
    assert done["assumptions"] == [["cufft"], ["cufft", "cusolver"]]


@each_python
def test_convolutions_go_to_cudnn_in_every_precision(python: str) -> None:
    """PyTorch chooses cuDNN as on a real GPU, not a fallback whose buffer no real GPU would hold."""
    backends = answer("convolution_backends.py", python=python)["backends"]
    assert backends == {"fp32": "Cudnn", "bf16": "Cudnn", "fp16": "Cudnn"}


@each_python
def test_every_symbol_is_resolved(python: str) -> None:
    """An import of torch succeeds with every function bound at once, and data loaders inherit the null GPU."""
    seen = answer("bind_now.py", python=python, LD_BIND_NOW="1")
    assert seen["available"]
    assert seen["workers"] == 4


def test_direct_calls_share_one_account() -> None:
    """From several threads, allocations never overlap and every byte is accounted for, whichever library was asked."""
    seen = answer("calls.py")
    assert seen["overlapping"] == 0
    assert seen["account"][0] == seen["account"][1]
    assert (seen["after_free"], seen["double_free"]) == (0, 1)
    assert seen["peak_within_capacity"]
    assert (seen["created"], seen["launches"]) == ([0, 0, 0, 0], [0, 1, 1, 1])
    assert (seen["runtime_launches"], seen["last_errors"]) == ([0, 9], [9, 9, 0])
    assert (seen["with_mapping"], seen["beside_mapping"], seen["at_last"]) == (40 * MIB, [False, True], 24 * MIB)


def test_host_code_cannot_follow_a_device_pointer() -> None:
    """A device pointer that host code reads is a fault at once, not somebody else's memory."""
    code = (
        "import ctypes, torch\n"
        "address = torch.ones(4, device='cuda').data_ptr()\n"
        "ctypes.string_at(address, 4)\n"
        "print('read')\n"
    )
    env = environment(CARD, build_of(sys.executable), os.environ)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-11, "")


@pytest.mark.slow
@pytest.mark.parametrize("python", [sys.executable, *OTHERS[:1]])
def test_compiles(python: str, tmp_path: Path) -> None:
    """torch.compile really compiles and records graphs, in caches of its own; its step takes no more."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    seen = answer("compiled.py", python=python, timeout=500, **caches)
    assert seen["unknown"] == []
    assert 0 < seen["compiled"] <= seen["eager"]
    assert seen["assumptions"] == ["cuda-graphs"]
    assert seen["in_pools"] >= 512 * 1024 * 4
    assert 0 < seen["graphed"] <= 2 * seen["eager"]
    assert seen["binaries"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("python", [sys.executable, *OTHERS[:1]])
def test_a_graph_that_was_compiled_before_takes_the_same_memory(python: str) -> None:
    """A second process compiles and times as the first one did, whatever lies in the compiler's caches."""
    width = str(8193 + 2 * secrets.randbelow(4096))
    runs = [answer("compiled_again.py", python=python, timeout=500, WIDTH=width, RUN=str(run)) for run in range(2)]
    assert runs[0]["timed"] > 0
    assert runs[1] == runs[0]


@pytest.mark.slow
def test_an_unmodified_trainer_runs_and_runs_out() -> None:
    """A Hugging Face Trainer script trains GPT-2 at micro-batch 4 on 24 GiB, and really runs out at 16."""
    if find_spec("transformers") is None or find_spec("accelerate") is None:
        pytest.skip("transformers and accelerate are not installed")
    fits = answer("trainer.py", "4", timeout=300)
    assert (fits["ran_out"], fits["steps"], fits["unknown"]) == (False, 4, [])
    assert 7 * GIB < fits["peak"] < 8 * GIB
    assert answer("trainer.py", "16", timeout=300)["ran_out"]


def test_programs_are_all_run() -> None:
    """No program lies here unused."""
    own = {path.name for path in PROGRAMS.glob("*.py")} - {"reporting.py"}
    text = "".join(path.read_text(encoding="utf-8") for path in PROGRAMS.parent.glob("test_*.py"))
    assert {name for name in own if f'"{name}"' not in text} == set()
