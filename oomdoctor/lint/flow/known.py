"""What the libraries' functions, methods and classes do: the tables of `known.toml`, and names by their wording."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from oomdoctor.lint.flow.events import Action, Kind

_TABLES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _by_name(table: str) -> dict[str, str]:
    """Return a table of lists the other way round: the key of each name."""
    return {name: key for key, names in _TABLES[table].items() for name in names}


LIBRARY_ALIASES: Final[Mapping[str, str]] = _TABLES["library_aliases"]
MAKES: Final[Mapping[str, Kind]] = {name: Kind(kind) for name, kind in _by_name("makes").items()}
MAKES_BELOW: Final = tuple((beginning, Kind(kind)) for beginning, kind in _TABLES["makes_below"].items())
CALLS: Final[Mapping[str, Action]] = {name: Action(action) for name, action in _by_name("calls").items()}
BASE_KINDS: Final[Mapping[str, Kind]] = {name: Kind(kind) for name, kind in _by_name("base_kinds").items()}
ANNOTATIONS: Final[Mapping[str, Kind]] = {name: Kind(kind) for name, kind in _by_name("annotations").items()}
WRAPPERS: Final[frozenset[str]] = frozenset(_TABLES["wrappers"])
SAME_VALUE: Final[frozenset[str]] = frozenset(_TABLES["same_value"])
NO_GRADIENTS: Final[frozenset[str]] = frozenset(_TABLES["no_gradients"])
GRADIENTS_BY_ARGUMENT: Final[frozenset[str]] = frozenset(_TABLES["gradients_by_argument"])
GRAPHLESS_METHODS: Final[frozenset[str]] = frozenset(_TABLES["graphless_methods"])
NUMBER_METHODS: Final[frozenset[str]] = frozenset(_TABLES["number_methods"])
GRAPHLESS_ATTRIBUTES: Final[frozenset[str]] = frozenset(_TABLES["graphless_attributes"])
NUMBER_ATTRIBUTES: Final[frozenset[str]] = frozenset(_TABLES["number_attributes"])
GRAPHLESS_FUNCTIONS: Final[frozenset[str]] = frozenset(_TABLES["graphless_functions"])
SAME_METHODS: Final[frozenset[str]] = frozenset(_TABLES["same_methods"])
FORWARD_METHODS: Final[frozenset[str]] = frozenset(_TABLES["forward_methods"])
GRADIENTLESS_FORWARDS: Final[frozenset[str]] = frozenset(_TABLES["gradientless_forwards"])
ITERATION_WRAPPERS: Final[frozenset[str]] = frozenset(_TABLES["iteration_wrappers"])
CALLED_BY_FRAMEWORKS: Final[frozenset[str]] = frozenset(_TABLES["called_by_frameworks"])
TRAINER_EVALUATION: Final[frozenset[str]] = frozenset(_TABLES["trainer_evaluation"])
ACTIVATIONS: Final[Mapping[str, str]] = _by_name("activations")
SHAPE_METHODS: Final[frozenset[str]] = frozenset(_TABLES["shape_methods"])
TO_NUMBERS: Final[frozenset[str]] = frozenset(_TABLES["to_numbers"])
NUMBERS: Final[frozenset[str]] = frozenset(_TABLES["numbers"])
CONTAINERS: Final[frozenset[str]] = frozenset(_TABLES["containers"])
COMPUTING: Final[frozenset[str]] = frozenset(_TABLES["computing"])
BACKWARD: Final = "torch.autograd.backward"

IS_FORWARD_METHOD: Final = re.compile(r"^(?:forward_\w+|encode_\w+|get_\w+_features|extract_features)$")
"""Methods of models that are parts of a forward pass; one that is called `encode` may switch autograd off itself."""

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

LIGHTNING_MODULES: Final = frozenset({"LightningModule"})
LIGHTNING_EVALUATION: Final = re.compile(
    r"^(?:validation|test|predict)_step$|^on_(?:validation|test|predict|fit)_|_epoch_end$|^predict_|^on_.*_end$"
)
TRAINER_BASES: Final = re.compile(r"Trainer$")
