"""Tables of what the libraries' functions, methods and classes do, by qualified name."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Action, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping


LIBRARY_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch.autograd.no_grad": "torch.no_grad",
        "torch.autograd.inference_mode": "torch.inference_mode",
        "torch.autograd.set_grad_enabled": "torch.set_grad_enabled",
        "torch.autograd.enable_grad": "torch.enable_grad",
        "torch.autograd.grad_mode.no_grad": "torch.no_grad",
        "torch.nn.utils.clip_grad.clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_value_": "torch.nn.utils.clip_grad_value_",
        "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
        "torch.serialization.load": "torch.load",
        "torch.cuda.memory.empty_cache": "torch.cuda.empty_cache",
    }
)
"""Other names of one thing."""

MAKES: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "torch.load": Kind.CHECKPOINT,
        "torch.utils.data.DataLoader": Kind.LOADER,
        "torch_geometric.loader.DataLoader": Kind.LOADER,
        "torch_geometric.data.DataLoader": Kind.LOADER,
        "torchdata.stateful_dataloader.StatefulDataLoader": Kind.LOADER,
        "torch.cuda.amp.GradScaler": Kind.SCALER,
        "torch.cuda.amp.grad_scaler.GradScaler": Kind.SCALER,
        "torch.amp.GradScaler": Kind.SCALER,
        "torch.GradScaler": Kind.SCALER,
        "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": Kind.SCALER,
        "accelerate.Accelerator": Kind.ACCELERATOR,
        "accelerate.accelerator.Accelerator": Kind.ACCELERATOR,
        "lightning.Fabric": Kind.FABRIC,
        "lightning.fabric.Fabric": Kind.FABRIC,
        "lightning_fabric.Fabric": Kind.FABRIC,
        "lightning.Trainer": Kind.TRAINER,
        "lightning.pytorch.Trainer": Kind.TRAINER,
        "pytorch_lightning.Trainer": Kind.TRAINER,
        "transformers.Trainer": Kind.TRAINER,
        "transformers.Seq2SeqTrainer": Kind.TRAINER,
        "ignite.engine.Engine": Kind.TRAINER,
        "timm.create_model": Kind.MODEL,
        "timm.models.create_model": Kind.MODEL,
        "torch.hub.load": Kind.MODEL,
        "segmentation_models_pytorch.Unet": Kind.MODEL,
        "torch.nn.parallel.DistributedDataParallel": Kind.MODEL,
        "torch.nn.parallel.distributed.DistributedDataParallel": Kind.MODEL,
        "torch.nn.DataParallel": Kind.MODEL,
        "torch.nn.parallel.DataParallel": Kind.MODEL,
        "torch.distributed.fsdp.FullyShardedDataParallel": Kind.MODEL,
        "torch.optim.swa_utils.AveragedModel": Kind.MODEL,
        "peft.get_peft_model": Kind.MODEL,
    }
)
"""Kinds of a call's result, by the call's whole name."""

MAKES_BELOW: Final[tuple[tuple[str, Kind], ...]] = (
    ("torch.optim.lr_scheduler.", Kind.SCHEDULER),
    ("torch.optim.", Kind.OPTIMIZER),
    ("bitsandbytes.optim.", Kind.OPTIMIZER),
    ("torch_optimizer.", Kind.OPTIMIZER),
    ("transformers.optimization.get_", Kind.SCHEDULER),
    ("transformers.get_", Kind.SCHEDULER),
    ("diffusers.optimization.get_", Kind.SCHEDULER),
    ("diffusers.get_", Kind.SCHEDULER),
    ("torchvision.models.", Kind.MODEL),
    ("transformers.Auto", Kind.MODEL),
    ("numpy.", Kind.ARRAY),
)
"""Kinds of a call's result, by the beginning of the call's name; the first that fits counts."""

WRAPPERS: Final = frozenset(
    {
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "torch.distributed.fsdp.FullyShardedDataParallel",
        "apex.parallel.DistributedDataParallel",
    }
)
"""Classes that spread a model over processes and reduce its gradients in the backward pass."""

SAME_VALUE: Final = frozenset(
    {
        "torch.compile",
        "torch.jit.script",
        "torch.jit.trace",
        "copy.copy",
        "torch.nn.parallel.DataParallel",
        "torch.nn.DataParallel",
        "tqdm.tqdm",
        "tqdm.auto.tqdm",
        "tqdm.notebook.tqdm",
        "tqdm.trange",
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
    }
)
"""Calls that give their first argument back, wrapped."""

CALLS: Final[Mapping[str, Action]] = MappingProxyType(
    {
        "torch.load": Action.LOAD,
        "torch.cuda.empty_cache": Action.EMPTY_CACHE,
        "torch.accelerator.empty_cache": Action.EMPTY_CACHE,
        "torch.mps.empty_cache": Action.EMPTY_CACHE,
        "torch.xpu.empty_cache": Action.EMPTY_CACHE,
        "torch.nn.utils.clip_grad_norm_": Action.CLIP,
        "torch.nn.utils.clip_grad_value_": Action.CLIP,
        "timm.utils.dispatch_clip_grad": Action.CLIP,
        "timm.utils.clip_grad.dispatch_clip_grad": Action.CLIP,
        "torch.autograd.grad": Action.AUTOGRAD,
        "torch.autograd.functional.jacobian": Action.AUTOGRAD,
        "torch.autograd.functional.hessian": Action.AUTOGRAD,
        "torch.autograd.functional.vjp": Action.AUTOGRAD,
        "torch.func.grad": Action.AUTOGRAD,
        "torch.func.jacrev": Action.AUTOGRAD,
        "torch.func.vjp": Action.AUTOGRAD,
        "torch.cat": Action.COLLECT,
        "torch.stack": Action.COLLECT,
        "torch.concat": Action.COLLECT,
        "torch.vstack": Action.COLLECT,
        "torch.hstack": Action.COLLECT,
    }
)
"""Functions that are events."""

BACKWARD: Final = "torch.autograd.backward"

NO_GRADIENTS: Final = frozenset({"torch.no_grad", "torch.inference_mode"})
GRADIENTS_BY_ARGUMENT: Final = frozenset(
    {"torch.set_grad_enabled", "torch.inference_mode", "torch.autograd.grad_mode.set_grad_enabled"}
)

HOST_METHODS: Final = frozenset({"item", "tolist", "numpy", "cpu"})
"""Methods of a tensor that bring it to the host."""

GRAPHLESS_METHODS: Final = frozenset(
    {
        "item", "tolist", "numpy", "detach", "detach_", "argmax", "argmin", "argsort", "eq", "ne", "gt", "ge", "lt",
        "le", "size", "dim", "numel", "nelement", "long", "int", "bool", "byte", "nonzero", "is_contiguous",
        "element_size", "isnan", "isinf", "isfinite", "any", "all", "data_ptr", "get_device", "new_zeros",
        "new_ones", "new_tensor", "new_full", "new_empty", "bincount", "unique", "sign", "round", "floor", "ceil",
        "type_as_int", "backward",
    }
)  # fmt: skip
"""Methods of a tensor whose result hangs on no graph."""

NUMBER_METHODS: Final = frozenset(
    {"item", "tolist", "size", "dim", "numel", "nelement", "element_size", "data_ptr", "is_contiguous", "get_device"}
)
GRAPHLESS_ATTRIBUTES: Final = frozenset({"data", "grad"})
NUMBER_ATTRIBUTES: Final = frozenset(
    {"shape", "device", "dtype", "ndim", "requires_grad", "is_cuda", "is_leaf", "layout", "itemsize", "training"}
)

GRAPHLESS_FUNCTIONS: Final = frozenset(
    {
        "argmax", "argmin", "argsort", "eq", "ne", "gt", "ge", "lt", "le", "equal", "allclose", "isnan", "isinf",
        "isfinite", "any", "all", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm",
        "arange", "linspace", "eye", "tensor", "as_tensor", "from_numpy", "zeros_like", "ones_like", "empty_like",
        "full_like", "rand_like", "randn_like", "no_grad", "device", "is_tensor", "numel", "unique", "bincount",
        "nonzero", "sign", "round", "floor", "ceil", "multinomial", "bernoulli", "histc", "searchsorted",
        "bucketize", "manual_seed", "isin", "logical_and", "logical_not", "logical_or", "triu_indices",
        "tril_indices", "Size", "save", "typename", "finfo", "iinfo", "Generator",
    }
)  # fmt: skip
"""Functions of `torch` itself whose result hangs on no graph."""

MODEL_METHODS: Final = frozenset(
    {
        "parameters", "named_parameters", "modules", "named_modules", "children", "named_children", "buffers",
        "named_buffers", "state_dict", "load_state_dict", "zero_grad", "requires_grad_", "register_buffer", "apply",
        "save_pretrained", "push_to_hub", "gradient_checkpointing_enable", "enable_input_require_grads",
        "print_trainable_parameters", "train", "eval", "no_sync", "get_submodule", "get_parameter",
        "num_parameters", "resize_token_embeddings", "compile", "register_forward_hook", "share_memory", "half",
        "float", "double", "bfloat16", "to", "cuda", "cpu", "type", "configure_optimizers",
        "set_requires_gradient_sync", "tie_weights", "get_input_embeddings", "register_full_backward_hook",
        "named_parameter", "get_extra_state", "update", "join", "join_hook", "reset_parameters", "init_weights",
    }
)  # fmt: skip
"""Methods of a model that make no forward pass."""

SAME_METHODS: Final = frozenset(
    {
        "to",
        "cuda",
        "cpu",
        "half",
        "float",
        "double",
        "bfloat16",
        "train",
        "eval",
        "requires_grad_",
        "contiguous",
        "clone",
        "share_memory",
        "pin_memory",
        "xpu",
        "npu",
        "mps",
        "compile",
        "type",
    }
)
"""Methods that give back the value that they are called on, or one that stands for it."""

FORWARD_METHODS: Final = frozenset({"forward", "__call__", "module"})
IS_FORWARD_METHOD: Final = re.compile(r"^(?:forward_\w+|encode_\w+|get_\w+_features|extract_features)$")
"""Methods of models that are parts of a forward pass; one that is called `encode` may switch autograd off itself."""
GRADIENTLESS_FORWARDS: Final = frozenset({"generate", "predict", "sample"})
"""Methods of models that run without autograd by themselves, in the libraries that have them."""

ITERATION_WRAPPERS: Final = frozenset(
    {
        "enumerate",
        "tqdm",
        "trange",
        "iter",
        "islice",
        "reversed",
        "track",
        "progress_bar",
        "prefetcher",
        "MpDeviceLoader",
        "skip_first_batches",
        "log_every",
        "ProgressBar",
        "alive_it",
        "progress",
    }
)
"""Last part of the names of what is put around what a loop goes over, which is the first argument."""

IS_MODEL_NAME: Final = re.compile(
    r"(?:^|[._])(?:model|net|network|encoder|decoder|backbone|generator|discriminator|unet|vae|netG|netD|"
    r"student|teacher|llm|policy_net|transformer|classifier|resnet|ddp_model|module)\d?$",
    re.IGNORECASE,
)
IS_OPTIMIZER_NAME: Final = re.compile(
    r"(?:^|[._])(?:optim\w*|opt|opt_\w+|\w+_opt|\w*optimizer\w*|optimi[sz]er\w*|adamw?|sgd|optimG|"
    r"optimD)(?:\[.*\])?$",
    re.IGNORECASE,
)
IS_SCHEDULER_NAME: Final = re.compile(r"(?:sched|annealer|warmup|lr_decay|lr_policy)\w*(?:\[.*\])?$", re.IGNORECASE)
IS_SCALER_NAME: Final = re.compile(r"(?:^|[._])\w*scaler$", re.IGNORECASE)
IS_LOADER_NAME: Final = re.compile(
    r"(?:loader|dataloader|_dl|batches|data_iter|train_iter|val_iter|test_iter|valid_iter|prefetcher|"
    r"_iterator|batch_iter\w*|_gen|_ds_iter|(?:^|[._])dl|(?:^|_)(?:train|val|valid|test|eval)_?(?:set|ds|gen|data))"
    r"s?(?:\[.*\]|\(\))?$",
    re.IGNORECASE,
)
IS_CRITERION_NAME: Final = re.compile(
    r"(?:^|[._])(?:criterion\w*|criteria|loss_fn\w*|loss_func\w*|loss_function|\w*_criterion|\w*_loss_fn|"
    r"loss_fct|objective|crit)$",
    re.IGNORECASE,
)
IS_ENGINE_NAME: Final = re.compile(r"(?:^|[._])\w*engine$", re.IGNORECASE)
IS_ACCELERATOR_NAME: Final = re.compile(r"(?:^|[._])accelerator$", re.IGNORECASE)
IS_FABRIC_NAME: Final = re.compile(r"(?:^|[._])fabric$", re.IGNORECASE)
IS_TRAINER_NAME: Final = re.compile(r"trainer|learner|agent|runner|algo\b|session", re.IGNORECASE)
IS_LOSS_NAME: Final = re.compile(r"(?:^|_)loss(?:es)?(?:$|_)|^err[DG]?(?:_|$)|^cost$", re.IGNORECASE)

CRITERION_CLASS: Final = re.compile(r"(?:Loss|Criterion)\w*$")

BASE_KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "torch.nn.Module": Kind.MODEL,
        "torch.nn.modules.Module": Kind.MODEL,
        "torch.nn.modules.module.Module": Kind.MODEL,
        "torch.nn.Sequential": Kind.MODEL,
        "torch.optim.Optimizer": Kind.OPTIMIZER,
        "torch.optim.optimizer.Optimizer": Kind.OPTIMIZER,
        "transformers.PreTrainedModel": Kind.MODEL,
        "torch.utils.data.DataLoader": Kind.LOADER,
    }
)
"""Kinds of a user class's objects, by the class's base."""

LIGHTNING_MODULES: Final = frozenset({"LightningModule"})
LIGHTNING_EVALUATION: Final = re.compile(
    r"^(?:validation|test|predict)_step$|^on_(?:validation|test|predict|fit)_|_epoch_end$|^predict_|^on_.*_end$"
)
TRAINER_BASES: Final = re.compile(r"Trainer$")
CALLED_BY_FRAMEWORKS: Final = frozenset(
    {"training_step", "validation_step", "test_step", "predict_step", "compute_loss", "prediction_step"}
)
"""Methods of Lightning's modules and Transformers' trainers that begin a run whoever else calls them."""
TRAINER_EVALUATION: Final = frozenset({"prediction_step", "evaluation_loop", "prediction_loop", "evaluate", "predict"})
