"""The phase that a traceback shows: on real deaths on the null GPU, and on frames of libraries not installed here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.diagnose.events import read_frames
from oomdoctor.diagnose.text.phases import phase_of, user_line
from oomdoctor.results import SourceLine, TrainingPhase

PROGRAM = Path(__file__).parent / "programs" / "dying.py"
SITE = "/opt/venv/lib/python3.11/site-packages"
Null = Callable[[int], dict[str, str]]

REAL = {
    "in_forward": (TrainingPhase.FORWARD, "return self.second(torch.relu(self.first(x)))"),
    "in_backward": (TrainingPhase.BACKWARD, "loss.backward()"),
    "in_recomputation": (TrainingPhase.BACKWARD, "return self.second(torch.relu(self.first(x)))"),
    "in_optimizer_step": (TrainingPhase.OPTIMIZER_STEP, "optimizer.step()"),
    "in_closure": (TrainingPhase.FORWARD, "return self.second(torch.relu(self.first(x)))"),
    "in_model_to_device": (TrainingPhase.MODEL_TO_DEVICE, 'model.to("cuda")'),
    "in_batch_to_device": (TrainingPhase.BATCH_TO_DEVICE, 'x.to("cuda", non_blocking=True)'),
    "in_checkpoint_load": (TrainingPhase.CHECKPOINT_LOAD, "torch.load(path)"),
    "in_evaluation": (TrainingPhase.EVALUATION, "return self.second(torch.relu(self.first(x)))"),
    "in_data_loading": (TrainingPhase.DATA_LOADING, 'return torch.empty(WIDTH, WIDTH, device="cuda")'),
    "in_chained": (TrainingPhase.FORWARD, "return self.second(torch.relu(self.first(x)))"),
    "in_handling": (TrainingPhase.FORWARD, "return self.second(torch.relu(self.first(x)))"),
    "in_pool": (TrainingPhase.FORWARD, "return self.second(torch.relu(self.first(x)))"),
    "in_grouped": (TrainingPhase.FORWARD, "return self.second(torch.relu(self.first(x)))"),
}


@pytest.mark.null_gpu
@pytest.mark.slow
def test_real_deaths_in_every_phase(null_environment: Null) -> None:
    """Each phase and the user's own line are found in real tracebacks, whoever printed them."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM)],
        env=null_environment(8 << 30),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for situation, texts in json.loads(done.stdout).items():
        phase, code = REAL[situation]
        for printer, text in texts.items():
            lines = text.splitlines()
            for at in (at for at, line in enumerate(lines) if "CUDA out of memory" in line):
                frames = read_frames(lines, at)
                own = user_line(frames)
                assert phase_of(frames, lines[at]) == phase, (situation, printer, frames)
                assert own is not None, (situation, printer)
                assert (Path(own.path).name, own.code) == ("dying.py", code), (situation, printer)


def frame(path: str, function: str, code: str | None = None) -> SourceLine:
    """A frame whose line does not matter."""
    return SourceLine(path, 1, function, code)


MAIN = frame("train.py", "main", "fit(model, loader)")
CALL = frame(f"{SITE}/torch/nn/modules/module.py", "_call_impl", "return forward_call(*args, **kwargs)")
FORWARD = frame("model.py", "forward", "return self.mlp(x)")
CHECKPOINT = f"{SITE}/torch/utils/checkpoint.py"
DDP = f"{SITE}/torch/nn/parallel/distributed.py"
ENGINE = frame(f"{SITE}/torch/autograd/__init__.py", "backward", "Variable._execution_engine.run_backward(")
LOADER = frame(f"{SITE}/torch/utils/data/dataloader.py", "__next__", "data = self._next_data()")
APPLY = frame(f"{SITE}/torch/nn/modules/module.py", "_apply", "param_applied = fn(param)")

P = TrainingPhase
OPTIM = f"{SITE}/torch/optim"
STACKS: dict[str, tuple[TrainingPhase | None, list[SourceLine]]] = {
    "forward": (P.FORWARD, [MAIN, CALL, FORWARD]),
    "forward of a custom function": (
        P.FORWARD,
        [MAIN, CALL, frame(f"{SITE}/torch/autograd/function.py", "apply", "return super().apply(*args, **kwargs)")],
    ),
    "a tensor that the model moves": (P.FORWARD, [MAIN, CALL, frame("model.py", "forward", "x = x.to(self.device)")]),
    "what a function of the model's moves": (P.FORWARD, [MAIN, CALL, FORWARD, frame("u.py", "f", "x.to(device)")]),
    "forward on the line of the backward pass": (
        P.FORWARD,
        [frame("a.py", "train", "model(x).sum().backward()"), CALL, FORWARD],
    ),
    "functional alone": (P.FORWARD, [frame("a.py", "loss_of", "return F.cross_entropy(logits, labels)")]),
    "compiled": (P.FORWARD, [MAIN, frame(f"{SITE}/torch/_dynamo/eval_frame.py", "_fn", "return fn(*args, **kwargs)")]),
    "backward": (P.BACKWARD, [MAIN, frame("t.py", "step", "loss.backward()"), ENGINE]),
    "backward without its frames": (P.BACKWARD, [MAIN, frame("t.py", "step", "scaler.scale(loss).backward()")]),
    "backward of DeepSpeed": (P.BACKWARD, [MAIN, frame(f"{SITE}/deepspeed/runtime/engine.py", "backward", "self.x(")]),
    "recomputation": (
        P.BACKWARD,
        [MAIN, ENGINE, frame(CHECKPOINT, "backward"), CALL, FORWARD],
    ),
    "recomputation, cut": (P.BACKWARD, [frame(CHECKPOINT, "unpack_hook"), CALL, FORWARD]),
    "a hook that moves a gradient": (P.BACKWARD, [MAIN, ENGINE, frame("hooks.py", "offload", 'g.to("cuda:1")')]),
    "backward inside evaluation": (P.BACKWARD, [frame("t.py", "evaluate", "loss.backward()"), ENGINE]),
    "optimizer": (P.OPTIMIZER_STEP, [MAIN, frame(f"{OPTIM}/adamw.py", "_init_group", "torch.zeros_like(")]),
    "optimizer's line alone": (P.OPTIMIZER_STEP, [MAIN, frame("t.py", "step", "self.optimizers[0].step()")]),
    "an optimizer inside the backward pass": (
        P.OPTIMIZER_STEP,
        [MAIN, ENGINE, frame("t.py", "hook", "optimizers[p].step()"), frame(f"{OPTIM}/sgd.py", "step")],
    ),
    "scaler": (P.OPTIMIZER_STEP, [MAIN, frame(f"{SITE}/torch/amp/grad_scaler.py", "_maybe_opt_step")]),
    "8-bit": (P.OPTIMIZER_STEP, [MAIN, frame(f"{SITE}/bitsandbytes/optim/optimizer.py", "init_state")]),
    "apex": (P.OPTIMIZER_STEP, [MAIN, frame(f"{SITE}/apex/optimizers/fused_adam.py", "step")]),
    "one's own optimizer": (P.OPTIMIZER_STEP, [MAIN, frame("/home/ada/proj/muon.py", "step", "m = torch.zeros(")]),
    "DeepSpeed makes its optimizer": (
        P.OPTIMIZER_STEP,
        [
            MAIN,
            frame(f"{SITE}/deepspeed/runtime/zero/stage_1_and_2.py", "flatten_dense_tensors_aligned"),
            frame(f"{SITE}/torch/_utils.py", "_flatten_dense_tensors", "flat = torch.cat("),
        ],
    ),
    "a closure": (P.FORWARD, [MAIN, frame(f"{OPTIM}/lbfgs.py", "step", "loss = closure()"), CALL, FORWARD]),
    "a schedule is no step": (
        None,
        [MAIN, frame(f"{OPTIM}/lr_scheduler.py", "step", "self.get_lr()")],
    ),
    "optimizer's state is loaded": (
        P.CHECKPOINT_LOAD,
        [
            MAIN,
            frame(f"{OPTIM}/optimizer.py", "load_state_dict"),
            frame(f"{OPTIM}/optimizer.py", "_cast"),
        ],
    ),
    "torch.load": (P.CHECKPOINT_LOAD, [MAIN, frame(f"{SITE}/torch/serialization.py", "_cuda_deserialize")]),
    "torch.load alone": (P.CHECKPOINT_LOAD, [MAIN, frame("t.py", "resume", "state = torch.load(path)")]),
    "safetensors": (P.CHECKPOINT_LOAD, [MAIN, frame(f"{SITE}/safetensors/torch.py", "load_file")]),
    "torch.save is none": (None, [MAIN, frame(f"{SITE}/torch/serialization.py", "_save")]),
    "module.to": (P.MODEL_TO_DEVICE, [MAIN, APPLY, frame(f"{SITE}/torch/nn/modules/module.py", "convert")]),
    "model.cuda alone": (P.MODEL_TO_DEVICE, [frame("t.py", "main", "model = build_model(config).cuda()")]),
    "a model's name": (P.MODEL_TO_DEVICE, [frame("t.py", "main", "self.text_encoder.to(device)")]),
    "offloading inside forward": (P.MODEL_TO_DEVICE, [MAIN, CALL, frame(f"{SITE}/x/hooks.py", "pre"), APPLY]),
    "a model inside a test script": (P.MODEL_TO_DEVICE, [frame("t.py", "test", "net.cuda()"), APPLY]),
    "Hugging Face": (
        P.MODEL_TO_DEVICE,
        [MAIN, frame(f"{SITE}/accelerate/utils/modeling.py", "set_module_tensor_to_device")],
    ),
    "vLLM": (P.MODEL_TO_DEVICE, [MAIN, frame(f"{SITE}/vllm/model_executor/layers/linear.py", "create_weights")]),
    "made on the device": (P.MODEL_TO_DEVICE, [MAIN, frame(f"{SITE}/torch/nn/modules/linear.py", "__init__")]),
    "wrapped in DDP": (
        P.MODEL_TO_DEVICE,
        [MAIN, frame(DDP, "_ddp_init_helper")],
    ),
    "a batch": (P.BATCH_TO_DEVICE, [frame("t.py", "train", "images = images.cuda(non_blocking=True)")]),
    "a batch by a library": (
        P.BATCH_TO_DEVICE,
        [MAIN, frame(f"{SITE}/accelerate/utils/operations.py", "send_to_device")],
    ),
    "another type is no device": (None, [frame("t.py", "train", "images = images.to(torch.float32)")]),
    "pinned": (P.BATCH_TO_DEVICE, [MAIN, LOADER, frame(f"{SITE}/torch/utils/data/_utils/pin_memory.py", "pin_memory")]),
    "a batch while evaluating": (P.EVALUATION, [frame("t.py", "validate", "x = x.cuda()")]),
    "loader": (P.DATA_LOADING, [MAIN, LOADER]),
    "a dataset on the device": (P.DATA_LOADING, [MAIN, LOADER, frame("d.py", "__getitem__", "return x.cuda()")]),
    "a model in a dataset": (P.DATA_LOADING, [MAIN, LOADER, frame("d.py", "__getitem__"), CALL, FORWARD]),
    "loading while evaluating": (P.DATA_LOADING, [frame("t.py", "validate", "for x in loader:"), LOADER]),
    "evaluation": (P.EVALUATION, [frame("t.py", "validate", "out = model(x)"), CALL, FORWARD]),
    "evaluation by Lightning": (P.EVALUATION, [MAIN, frame("m.py", "validation_step", "self(x)"), CALL, FORWARD]),
    "what evaluation collects": (P.EVALUATION, [frame("t.py", "eval_epoch", "scores = scores.clone()")]),
    "evaluation by its call": (P.EVALUATION, [frame("t.py", "main", "loss = evaluate(model, criterion)")]),
    "model.eval is none": (None, [frame("t.py", "main", "model.eval()")]),
    "validators are none": (None, [frame("t.py", "validate_config", "raise ValueError")]),
    "nothing known": (None, [frame("t.py", "recall", "r = torch.sign(s @ p)")]),
    "no frames": (None, []),
}


@pytest.mark.parametrize(("phase", "frames"), STACKS.values(), ids=STACKS)
def test_phase_of_a_stack(phase: TrainingPhase | None, frames: list[SourceLine]) -> None:
    """The innermost sign decides, except where an outer phase takes precedence."""
    assert phase_of(frames, "CUDA out of memory.") == phase
    windows = [SourceLine(it.path.replace("/", "\\"), it.line, it.function, it.code) for it in frames]
    assert phase_of(windows, "CUDA out of memory.") == phase


def test_functions_with_their_class_are_the_same() -> None:
    """IPython names functions with their class."""
    assert phase_of([frame(f"{OPTIM}/adam.py", "Adam.step")], "") == TrainingPhase.OPTIMIZER_STEP
    assert phase_of([MAIN, frame("m.py", "Net.validation_step", "self(x)")], "") == TrainingPhase.EVALUATION


@pytest.mark.parametrize(
    ("message", "phase"),
    [
        ("DataLoader worker (pid 71) is killed by signal: Bus error.", TrainingPhase.DATA_LOADING),
        ("Caught RuntimeError in pin memory thread for device 0.", TrainingPhase.BATCH_TO_DEVICE),
        ("CUDA out of memory.", None),
    ],
)
def test_the_message_may_name_the_phase(message: str, phase: TrainingPhase | None) -> None:
    """A message tells where no frame does."""
    assert phase_of((), message) == phase


TEXT = st.text(max_size=40) | st.sampled_from(
    ["forward", "backward", "x.to(", "optimizer[0].step(", "torch/optim/", ""]
)


@given(st.lists(st.builds(SourceLine, TEXT, st.integers(1, 9), st.none() | TEXT, st.none() | TEXT)), st.text())
def test_any_frames_have_a_phase_or_none(frames: list[SourceLine], message: str) -> None:
    """Nothing raises, whatever the frames say."""
    assert phase_of(frames, message) in {None, *TrainingPhase}
