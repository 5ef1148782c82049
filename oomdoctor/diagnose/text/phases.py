"""The phase of training that a traceback shows, and the owner of a source file: user or library.

Every frame is compared with `_SIGNS`, first sign first, and has at most one phase. The innermost frame with a
phase decides, except where `_PRECEDENCE` says that an outer one does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.results import TrainingPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import SourceLine


_LONGEST_PATH = 4096

_TYPED_BY_HAND = re.compile(
    r"^(?:<stdin>|<console>|<ipython-input[^<>]*>|<cell line[^<>]*>|(?:Cell In|Input In|In) ?\[\d+\]"
    r"|.*/(?:ipykernel_\d+|ipython-input)[-/].*)$"
)
"""Code of a notebook or a prompt."""

_CHECKED_OUT = (
    "accelerate|apex|bitsandbytes|deepspeed|diffusers|lightning|lightning_fabric|peft|pytorch_lightning|transformers|trl"
    "|vllm"
)
"""Libraries that people also install from a checkout."""

_LIBRARY_PLACES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:^|/)(?:site|dist)-packages/",
        r"(?:^|/)lib(?:32|64)?/python\d?(?:\.\d+)*t?/",  # the standard library on Linux and macOS
        r"(?:^|/)(?:python[\w.-]*|\w*conda\w*|\w*conda\w*/envs/[^/]+)/lib/",  # and on Windows
        r"(?:^|/)python\d+\.zip/|\.egg/",
        r"(?:^|/)(?:bin|scripts)/(?:[^/.]+|[^/]+\.exe/__main__\.py)$",  # what an installed command starts with
        r"/huggingface/modules/|/\.cache/torch/|/torch/hub/",  # models' own code, downloaded
        r"(?:^|/)torchinductor_[^/]+/|/torch_compile_debug/",  # written by the compiler
        r"(?:^|/)(?:debugpy|_?pydevd?_?\w*)/|(?:^|/)pydevd\.py$",  # started by an editor
        r"(?:^|/)torch/(?:nn|optim|autograd|utils|cuda|amp|distributed|multiprocessing|fx|jit|func|backends|csrc|_\w+)/",
        r"(?:^|/)torch/(?:_?tensor|serialization|functional|storage|hub|overrides|_\w+)\.py$",
        rf"(?:^|/)(?:{_CHECKED_OUT})/src/\w+/",  # a checkout that is installed in place
        rf"(?:^|/)({_CHECKED_OUT})/\1/",
        rf"(?:^|/)src/(?:{_CHECKED_OUT})/(?!examples/|scripts/|tests/|docs/|src/)(?:\w+/)+\w+\.py$",
        r"(?:^|/)(?:accelerate|transformers)/(?:utils|models|generation|commands)/",
        r"(?:^|/)accelerate/(?:accelerator|big_modeling|data_loader|hooks|launchers|optimizer|state)\.py$",
        r"(?:^|/)transformers/(?:trainer\w*|modeling_\w+|configuration_utils|optimization)\.py$",
        r"(?:^|/)(?:lightning/pytorch|lightning/fabric|lightning_fabric|pytorch_lightning)/",
        r"(?:^|/)deepspeed/(?:runtime|ops|utils|comm|inference|launcher|accelerator|module_inject)/",
        r"(?:^|/)deepspeed/__init__\.py$",
    )
)

_NATIVE = re.compile(r"\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|so|dll|pyd|pyx)(?:\.\d+)*(?::\d+)?$", re.IGNORECASE)


def is_library(path: str) -> bool:
    """Return whether a file is not code that a user wrote: a library's, the standard library's, generated, not Python.

    Args:
        path: As a traceback or a memory snapshot prints it, of any operating system.
    """
    plain = path.strip()[:_LONGEST_PATH].replace("\\", "/")
    if _TYPED_BY_HAND.match(plain):
        return False
    if not plain or plain.startswith(("<", "??", "[")) or _NATIVE.search(plain):
        return True
    return any(place.search(plain) for place in _LIBRARY_PLACES)


def user_line(frames: Sequence[SourceLine]) -> SourceLine | None:
    """The innermost frame that is the user's own code; None where all are libraries'."""
    return next((frame for frame in reversed(frames) if not is_library(frame.path)), None)


ANYWHERE: Final = "anywhere"
INNERMOST: Final = "innermost sign"
OWN_INNERMOST: Final = "innermost frame, the user's own"


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign; of the patterns, all that are given must be found.

    Attributes:
        phase: What it shows.
        reason: Why it does.
        path: Somewhere in the file's path, with slashes.
        function: The whole name of the function, without its class.
        code: Somewhere in the line.
        where: In which frames it counts. A line's text tells of the call that it makes only where no frame inside it
            tells better: `model(x).sum().backward()` may die in the forward pass.
    """

    phase: TrainingPhase
    reason: str
    path: re.Pattern[str] | None = None
    function: re.Pattern[str] | None = None
    code: re.Pattern[str] | None = None
    where: str = ANYWHERE

    def shown_by(self, path: str, function: str, code: str) -> bool:
        """Return whether a frame shows the sign."""
        return (
            (self.path is None or self.path.search(path) is not None)
            and (self.function is None or self.function.fullmatch(function) is not None)
            and (self.code is None or self.code.search(code) is not None)
        )


def _sign(  # noqa: PLR0913 (a row of the table below)
    phase: TrainingPhase,
    reason: str,
    *,
    path: str | None = None,
    function: str | None = None,
    code: str | None = None,
    where: str = ANYWHERE,
) -> Sign:
    path_pattern, function_pattern, code_pattern = (
        re.compile(pattern) if pattern is not None else None for pattern in (path, function, code)
    )
    return Sign(phase, reason, path_pattern, function_pattern, code_pattern, where)


_BACKWARD = TrainingPhase.BACKWARD
_OPTIMIZER = TrainingPhase.OPTIMIZER_STEP
_MODEL = TrainingPhase.MODEL_TO_DEVICE
_CHECKPOINT = TrainingPhase.CHECKPOINT_LOAD
_BATCH = TrainingPhase.BATCH_TO_DEVICE
_LOADING = TrainingPhase.DATA_LOADING
_EVALUATION = TrainingPhase.EVALUATION
_FORWARD = TrainingPhase.FORWARD

_MODEL_NAME = (
    r"(?:\w{0,40}(?:model|net|network|encoder|decoder|generator|discriminator|critic|policy|backbone|unet|vae|pipe|"
    r"pipeline|transformer)\w{0,40})"
)
_TO_A_DEVICE = (  # and not `.to(dtype)`
    r"\.cuda\(|\.to\([^()]{0,200}(?:device|cuda|gpu|rank|mps|xpu|hpu|npu|non_blocking)|\.to\(\s*\d"
)
_OPTIMIZER_LIBRARIES = (
    r"bitsandbytes/optim/|apex/(?:contrib/)?optimizers/|deepspeed/ops/(?:adam|lamb|lion|adagrad|muon)/|timm/optim/"
    r"|torchao/optim/|pytorch_optimizer/|torch_optimizer/|galore_torch/|lion_pytorch/|schedulefree/"
    r"|transformers/optimization\.py|fairscale/optim/|fairseq/optim/|megatron/(?:core/)?optimizer/"
    r"|(?:adamw?|lion|muon|shampoo|lamb|sgd|sophia|adafactor|optim\w{0,20})\w{0,20}\.py$"
)

SIGNS = (
    _sign(_CHECKPOINT, "the optimizer's state is loaded, not made", path=r"torch/optim/",
          function=r"_?load_state_dict\w{0,40}|_process_value_according_to_param_policy|_?cast|update_group"),
    _sign(_OPTIMIZER, "PyTorch's optimizers", path=r"torch/optim/(?!lr_scheduler|swa_utils)"),
    _sign(_OPTIMIZER, "the functions of PyTorch's optimizers", function=r"_(?:multi|single)_tensor_\w{1,40}"),
    _sign(_OPTIMIZER, "the scaler steps or unscales in its place", path=r"grad_scaler\.py",
          function=r"step|_maybe_opt_step|unscale_|_unscale_grads_"),
    _sign(_OPTIMIZER, "the optimizers of other libraries", path=_OPTIMIZER_LIBRARIES,
          function=r"_?step\w{0,30}|__call__|init_state\w{0,20}|update_step|initialize_optimizer_states|_init_group|"
          r"_?update\w{0,20}|get_state_buffer|_maybe_init\w{0,40}|prefetch_state|step_with_\w{1,30}"),
    _sign(_OPTIMIZER, "DeepSpeed flattens the weights for its optimizer, makes its state and steps",
          path=r"deepspeed/(?:runtime|pt)/",
          function=r"_?step|_optimizer_step|_take_model_step|initialize_optimizer_states|_configure_\w{0,20}optimizer|"
          r"_?flatten\w{0,60}|_create_fp(?:16|32)_\w{1,40}|_setup_for_real_optimizer|_prepare_\w{1,40}_for_optimizer\w{0,20}"
          r"|_initialize_optimizer_states|setup_for_real_optimizer|unscale_and_clip_grads"),
    _sign(_OPTIMIZER, "weights are flattened for a sharded optimizer", function=r"_?flatten_dense_tensors\w{0,40}",
          where=INNERMOST),
    _sign(_CHECKPOINT, "tensors of a file are put where they were saved from",
          function=r"_cuda_deserialize|restore_location|default_restore_location|_load_from_bytes|persistent_load"),
    _sign(_CHECKPOINT, "`torch.load`", path=r"torch/serialization\.py$", function=r"(?!.{0,20}save).{0,200}"),
    _sign(_CHECKPOINT, "safetensors", path=r"safetensors/", function=r"load\w{0,40}|get_tensor"),
    _sign(_CHECKPOINT, "a distributed checkpoint", path=r"torch/distributed/checkpoint/",
          function=r"_?load\w{0,40}|read_data|_read\w{0,40}"),
    _sign(_MODEL, "a module is moved, converted or given weights", path=r"(?:torch|bitsandbytes)/nn/modules",
          function=r"_apply|convert|to|to_empty|cuda|half|float|double|bfloat16|type|<lambda>|_quantize|flatten_parameters"
          r"|load_state_dict|_load_from_state_dict|load"),
    _sign(_MODEL, "a module is moved", function=r"_apply"),
    _sign(_MODEL, "a module is made on the device", path=r"torch/nn/(?:modules/|init\.py|parameter\.py)",
          function=r"__init__|reset_parameters|\w{1,40}_(?:uniform|normal)_|_no_grad_\w{1,40}"),
    _sign(_MODEL, "a module is wrapped for several devices, which copies or shards its weights",
          path=r"torch/nn/parallel/distributed\.py|torch/distributed/(?:fsdp|_composable|tensor)/",
          function=r"__init__|_ddp_init_helper|_sync_module_states|_?init_\w{1,60}|_auto_wrap\w{0,20}|flatten_tensors\w{0,40}"
          r"|fully_shard|_move_\w{1,60}|_materialize\w{0,60}|distribute_tensor|distribute_module"),
    _sign(_MODEL, "Hugging Face puts weights on devices",
          function=r"set_module_tensor_to_device|dispatch_model|load_checkpoint_in_model|load_checkpoint_and_dispatch"
          r"|_load_state_dict_into_\w{1,40}|_load_pretrained_model|from_pretrained|_move_model_to_device|model_to_device"
          r"|caching_allocator_warmup|load_shard_files?"),
    _sign(_MODEL, "Hugging Face reads weights", path=r"transformers/(?:modeling_utils|core_model_loading)\.py$",
          function=r"load_state_dict|_?materialize\w{0,40}|convert\w{0,60}"),
    _sign(_MODEL, "an inference engine makes its model",
          path=r"vllm/|sglang/|lmdeploy/|text_generation_server/",
          function=r"load_model|load_weights|create_weights|_?initialize_model|process_weights_after_loading|get_model"
          r"|weight_loader|_?load_weights\w{0,40}"),
    _sign(_MODEL, "DeepSpeed shards a model while it is made", path=r"deepspeed/runtime/zero/partition_parameters\.py$",
          function=r"wrapper|_post_init_method|partition|_?partition_param\w{0,20}|_convert_to_deepspeed_param"),
    _sign(_BATCH, "a batch is copied to pinned memory", function=r"_?pin_memory\w{0,20}|do_one_step"),
    _sign(_LOADING, "PyTorch's loaders and what they call", path=r"torch/utils/data/|torchdata/|webdataset/"),
    _sign(_LOADING, "the functions of loaders", function=r"_worker_loop|default_collate|collate_fn"),
    _sign(_BACKWARD, "the engine of autograd", path=r"torch/(?:autograd/(?:__init__|variable|graph)|_?tensor)\.py$",
          function=r"backward|grad|_make_grads|_engine_run_backward|run_backward"),
    _sign(_BACKWARD, "the engine calls back a function of the user's or a library's",
          path=r"torch/autograd/function\.py$", code=r"user_fn\(|backward_fn|\._?backward|_forward_cls"),
    _sign(_BACKWARD, "a checkpoint is recomputed", path=r"checkpoint(?:ing)?\.py$",
          function=r"backward|unpack_hook|unpack|recompute_fn"),
    _sign(_BACKWARD, "libraries call their backward pass so",
          path=r"(?:site|dist)-packages/|torch/|deepspeed/|lightning|accelerate/|transformers/|apex/",
          function=r"backward|_backward_impl|manual_backward|run_backward|CompiledFunctionBackward"),
    _sign(_FORWARD, "modules are called",
          function=r"_call_impl|_wrapped_call_impl|_slow_forward|_?forward(?:_\w{1,40})?"),
    _sign(_BATCH, "scattered to the replicas", path=r"torch/nn/parallel/", function=r"scatter\w{0,20}"),
    _sign(_FORWARD, "modules and their functions", path=r"torch/nn/(?:modules|parallel)/|torch/nn/functional\.py$"),
    _sign(_FORWARD, "compiled modules", path=r"torch/_dynamo/eval_frame\.py$|torch/_functorch/|torchinductor_",
          function=r"(?!.{0,40}backward).{0,200}"),
    _sign(_FORWARD, "kernels of attention", path=r"flash_attn/|xformers/ops/"),
    _sign(_EVALUATION, "what is called evaluation, by the usual names", path=r"^(?!.{0,4000}/torch/)",
          function=r"_?(?:run_|do_|simple_|perform_|inner_)?(?:evaluat(?:e|ion)(?:_\w{1,60})?|eval(?:_\w{1,60})?"
          r"|(?:validat(?:e|ion)|valid|val|test|predict(?:ion)?)(?:_(?:one_)?(?:step|epoch|loop|loops|model|batch|fn|impl|all"
          r"|set|dataset|data|loader|dataloader|metrics|loss|dice|end_to_end|one))?)"),
    _sign(_EVALUATION, "loops of libraries that evaluate",
          path=r"loops/(?:evaluation|prediction)_loop\.py$|ultralytics/engine/(?:validator|predictor)\.py$"),
    _sign(_EVALUATION, "the same", function=r"_run_sanity_check|inference_on_dataset|_evaluation_step|_run_validation"),
    _sign(_BATCH, "the functions of libraries that move a batch",
          function=r"send_to_device|move_data_to_device|batch_to_device|transfer_batch_to_device|_?apply_batch_transfer_handler"
          r"|_prepare_inputs?|move_to_(?:cuda|device|gpu)|recursive_to(?:_device)?|_?to_device|to_cuda|batch_to"),
    _sign(_BATCH, "tokenizers' and image processors' batches move themselves",
          path=r"transformers/(?:tokenization_utils_base|feature_extraction_utils|image_processing_base)\.py$",
          function=r"to"),
    _sign(_OPTIMIZER, "the line steps the optimizer",
          code=r"\b\w{0,40}(?:opt|optim|optimizer|optimizers|optimizer_\w{1,20}|opt_\w{1,20}|optim_\w{1,20}|scaler)"
          r"(?:\[[^\]]{0,40}\])?(?:\(\))?\.step\(",
          where=INNERMOST),
    _sign(_BACKWARD, "the line calls the backward pass", code=r"\.(?:manual_)?backward\(|\bautograd\.grad\(",
          where=INNERMOST),
    _sign(_CHECKPOINT, "the line loads a file of tensors", code=r"\btorch\.load\(|\bload_file\(|\bsafe_open\(",
          where=INNERMOST),
    _sign(_MODEL, "the line moves a model",
          code=rf"\b{_MODEL_NAME}(?:\([^()]{{0,200}}\))?(?:\[[^\]]{{0,40}}\])?(?:{_TO_A_DEVICE})|\.load_state_dict\(|\.from_pretrained\(",
          where=INNERMOST),
    _sign(_BATCH, "the line moves something that is no model", code=_TO_A_DEVICE, where=OWN_INNERMOST),
    _sign(_EVALUATION, "the line calls an evaluation",
          code=r"(?<![\w])(?:self\.|trainer\.|\w{1,40}\.)?(?:run_|do_)?(?:evaluate|validate|evaluation|validation|validation_step"
          r"|val_epoch|val_step|eval_(?:model|epoch|step|fn))\(",
          where=INNERMOST),
    _sign(_BACKWARD, "a user's function of that name, and nothing inside it", function=r"backward",
          where=OWN_INNERMOST),
    _sign(_FORWARD, "the line calls a model or one of PyTorch's functions for them",
          code=r"(?<![.\w])(?:self\.)?(?:model|net|network|criterion|loss_fn|loss_func|loss_function)\(|\bF\.\w{1,60}\(",
          where=INNERMOST),
    _sign(_FORWARD, "a step of training or its loss, and nothing in it that tells more",
          function=r"training_step|compute_loss|_compute_loss", where=INNERMOST),
)  # fmt: skip
"""Tried in this order: of two signs in one frame the first counts."""


_MOST_FRAMES = 1000
_LONGEST_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class _Precedence:
    """An outer phase that counts although a frame inside it shows another.

    Attributes:
        outer: The phase that counts.
        inner: What it takes precedence over.
        reason: Why.
    """

    outer: TrainingPhase
    inner: frozenset[TrainingPhase]
    reason: str


_Phase = TrainingPhase
_PRECEDENCE = (
    _Precedence(
        _Phase.BACKWARD,
        frozenset({_Phase.FORWARD, _Phase.BATCH_TO_DEVICE, _Phase.EVALUATION}),
        "checkpointing runs the forward again inside the backward pass, beside gradients and other activations",
    ),
    _Precedence(
        _Phase.DATA_LOADING,
        frozenset({_Phase.FORWARD, _Phase.CHECKPOINT_LOAD, _Phase.MODEL_TO_DEVICE}),
        "what a dataset or a worker calls, even a model of its own or a file of tensors, is done to load data",
    ),
    _Precedence(
        _Phase.EVALUATION,
        frozenset({_Phase.FORWARD, _Phase.BATCH_TO_DEVICE}),
        "evaluation is a forward pass too, and what is special is that no graph should be kept",
    ),
    _Precedence(
        _Phase.FORWARD,
        frozenset({_Phase.BATCH_TO_DEVICE}),
        "a tensor that a model moves while it computes is part of its forward pass, not the batch",
    ),
)

_MESSAGES = (
    (re.compile(r"pin memory thread", re.IGNORECASE), TrainingPhase.BATCH_TO_DEVICE),
    (re.compile(r"DataLoader worker|bus error encountered in worker", re.IGNORECASE), TrainingPhase.DATA_LOADING),
    (re.compile(r"copying the param(?:eter)? named", re.IGNORECASE), TrainingPhase.MODEL_TO_DEVICE),
)


def phase_of(frames: Sequence[SourceLine], message: str) -> TrainingPhase | None:
    """Return the phase that the program was in when it raised an error.

    Args:
        frames: The traceback, outermost first.
        message: The error's words; where they name a phase, they settle it.

    Returns:
        The phase; None where neither tells.
    """
    said = next((phase for words, phase in _MESSAGES if words.search(message[:_LONGEST_MESSAGE])), None)
    if said is not None:
        return said
    outer: list[TrainingPhase] = []
    innermost: Sign | None = None
    for depth, frame in enumerate(reversed(frames[-_MOST_FRAMES:])):
        sign = _sign_of(frame, innermost_frame=depth == 0, innermost_sign=innermost is None)
        if sign is not None and innermost is None:
            innermost = sign
        elif sign is not None:
            outer.append(sign.phase)
    return None if innermost is None else _settled(innermost, outer)


def _settled(innermost: Sign, outer: list[TrainingPhase]) -> TrainingPhase:
    tentative = innermost.where != ANYWHERE
    for rule in _PRECEDENCE:
        if rule.outer in outer and (innermost.phase in rule.inner or (tentative and rule.outer in _COVERING)):
            return rule.outer
    return innermost.phase


_COVERING = frozenset({TrainingPhase.BACKWARD, TrainingPhase.DATA_LOADING})
"""Phases that a line of code alone does not contradict: hooks and datasets may do anything."""


def _sign_of(frame: SourceLine, *, innermost_frame: bool, innermost_sign: bool) -> Sign | None:
    """The sign that a frame shows.

    Args:
        frame: The frame.
        innermost_frame: Whether no frame lies inside it.
        innermost_sign: Whether no frame inside it shows any sign.
    """
    path = frame.path.replace("\\", "/")
    function = (frame.function or "").rpartition(".")[2]
    code = frame.code or ""
    for sign in SIGNS:
        if sign.where == INNERMOST and not innermost_sign:
            continue
        if sign.where == OWN_INNERMOST and not (innermost_frame and not is_library(frame.path)):
            continue
        if sign.shown_by(path, function, code):
            return sign
    return None
