"""The user's own code is told from libraries' by its path."""

from __future__ import annotations

import traceback

import pytest
import torch.nn.modules.module
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.diagnose.text.phases import is_library, user_line
from oomdoctor.results import SourceLine

LIBRARIES = [
    traceback.__file__,
    torch.nn.modules.module.__file__,
    "lib/python3.9/site-packages/torch/nn/modules/linear.py",
    "/usr/lib/python3/dist-packages/apt/cache.py",
    "/usr/lib/python3.11/threading.py",
    "/usr/local/lib/python3.10/runpy.py",
    "/opt/conda/lib/python3.10/contextlib.py",
    "~/anaconda3/lib/python3.7/multiprocessing/pool.py",
    r"C:\Users\ada\AppData\Local\Programs\Python\Python310\lib\threading.py",
    r"C:\ProgramData\Miniconda3\envs\train\lib\runpy.py",
    r"F:\Users\ada\miniconda3\envs\x\Lib\site-packages\torch\nn\modules\module.py",
    r"c:\python39\Scripts\imagine.exe\__main__.py",
    "/opt/venv/bin/torchrun",
    "/workspace/pytorch/torch/nn/functional.py",
    "/opt/pytorch/torch/_dynamo/eval_frame.py",
    "/root/transformers/src/transformers/models/llama/modeling_llama.py",
    "/root/accelerate/src/accelerate/accelerator.py",
    "/root/DeepSpeed/deepspeed/runtime/engine.py",
    "/src/pytorch-lightning/src/lightning/pytorch/trainer/call.py",
    "/root/.cache/huggingface/modules/transformers_modules/org/model/modeling.py",
    "/root/.cache/torch/hub/org_repo_main/models/yolo.py",
    "/run/x/torchinductor_ada/ab/cabcd.py",
    "/home/ada/.vscode/extensions/ms-python.debugpy/bundled/libs/debugpy/server/cli.py",
    "/home/ada/oomdoctor/oomdoctor/agent/known_values.py",
    "/home/ada/oomdoctor/oomdoctor/agent/forking/serving.py",
    r"C:\src\oomdoctor\oomdoctor\api\accumulate.py",
    "<frozen importlib._bootstrap>",
    "<string>",
    "<eval_with_key>.12",
    "??:0",
    "??",
    "",
    "/pytorch/c10/cuda/CUDACachingAllocator.cpp",
    "../aten/src/ATen/Context.h:12",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
]
OWN = [
    "train.py",
    "/home/ada/oomdoctor/train.py",
    "/home/ada/oomdoctor/agent.py",
    "./src/train.py",
    "/home/ada/torch/train.py",
    "/home/ada/torch-experiments/nn/model.py",
    "/home/ada/src/transformers/test.py",
    "/home/ada/src/transformers/examples/pytorch/run_clm.py",
    "/home/ada/lib/model.py",
    "/home/ada/lightning/train.py",
    "/home/ada/miniconda3/projects/train.py",
    "/content/library/unet.py",
    "/home/ada/proj/bin/train.py",
    r"D:\kohya ss\train_network.py",
    "/home/jürgen/项目/训练.py",
    "<stdin>",
    "<ipython-input-12-0ddba11>",
    "Cell In[3]",
    "Input In [3]",
    "/run/x/ipykernel_2600/1331063294.py",
    "/workspace/vllm_experiments/serve.py",
]


@pytest.mark.parametrize("path", LIBRARIES)
def test_libraries(path: str) -> None:
    """Installed, generated, native and standard files are libraries'."""
    assert is_library(path)


@pytest.mark.parametrize("path", OWN)
def test_own(path: str) -> None:
    """Everything else is the user's, even in a folder that is named like a library."""
    assert not is_library(path)


def test_the_innermost_own_line() -> None:
    """Of several own frames the innermost is taken, and none where all are libraries'."""
    frames = [SourceLine(path, line) for line, path in enumerate(["train.py", "model.py", *LIBRARIES[:5]], start=1)]
    assert user_line(frames) == SourceLine("model.py", 2)
    assert user_line(frames[2:]) is None
    assert user_line(()) is None


@given(st.text())
def test_any_path_is_one_or_the_other(path: str) -> None:
    """Nothing raises, whatever a path is."""
    assert is_library(path) in (True, False)
