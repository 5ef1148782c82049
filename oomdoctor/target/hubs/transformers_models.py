"""Files for models of transformers, from a `config.json` alone; no code of a repository is run."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.errors import NoAnswerError, TargetError
from oomdoctor.target.contract import summary
from oomdoctor.target.hubs.generated import GeneratedTarget, library, literal, refused, without_memory
from oomdoctor.target.hubs.transformers_batches import TASKS, Batch, BatchSettings, Task

if TYPE_CHECKING:
    from oomdoctor.target.reference import Reference

_OURS: Final = (
    *("architecture", "dtype", "revision", "sequence_length", "target_length", "image_size", "audio_length", "choices"),
)
"""Keywords that are no settings of a configuration; `image_size` may be one as well."""
_NOT_KEPT: Final = (
    *("transformers_version", "architectures", "auto_map", "dtype", "torch_dtype", "id2label", "label2id"),
    *("_name_or_path", "_attn_implementation_autoset"),
)
_LABELS: Final = ("labels", "start_positions", "bool_masked_pos", "noise")
"""Parameters of which a model that has a loss takes one; the last is of those that mask images by themselves."""
_REFUSED: Final = {
    "blt": "it cuts bytes into patches by their values, on which its memory depends",
    "bros": "its step takes a box for each token, which its configuration does not tell",
    "prophetnet": "its step asserts what the tokens are, which without a GPU nobody computes",
}
"""Why, by type of model, what a step takes or allocates cannot be known."""
_MODALITIES: Final = ("vision", "audio", "image", "speech")
"""Words in the names of the parts of configurations that are of several inputs."""
_MOST_NEAR: Final = 8
"""Rows that a table of learned positions may have more than it has positions, for padding and the like."""


def of_transformers(reference: Reference) -> GeneratedTarget:
    """Generate the file of a model of transformers.

    Raises:
        NoAnswerError: transformers is not installed, or the configuration cannot be had offline.
        TargetError: There is no configuration, or one whose batch or loss cannot be known.
    """
    transformers: Any = library("transformers", reference)
    keywords = dict(reference.kwargs)
    path = _config_file(reference, keywords)
    data = _read(reference, path)
    config = _config(transformers, reference, path, data, keywords)
    architecture = str(keywords.get("architecture") or next(iter(data.get("architectures") or ()), ""))
    task, name, note = _head(reference, transformers, config, architecture)
    dtype, dtype_note = _dtype(reference, config, keywords)
    if getattr(config, "use_cache", False):
        config.use_cache = False
    _complete(task, config)
    config.architectures = [name]
    auto = getattr(transformers, task.auto)
    try:
        model = without_memory(lambda: auto.from_config(config, dtype=torch.float32, trust_remote_code=False))
    except Exception as error:  # noqa: BLE001 - the library's own
        raise refused(reference, f"transformers cannot build `{name}`: {summary(error)}") from None
    if type(model).__name__ != name:
        raise refused(reference, f"it asks for `{name}`, and transformers makes `{type(model).__name__}`")
    if not _takes_labels(model):
        raise refused(reference, f"`{name}` takes no labels, so that it has no loss")
    settings = BatchSettings(reference, config, keywords, dtype, _positions(model, config), _preprocessor(path))
    batch = task.batch(settings)
    choices = {
        "model": f"`{name}` of transformers {transformers.__version__}, {note}; random weights, none are downloaded",
        "weights": dtype_note,
        **({"use_cache": "False, since training fills no cache"} if hasattr(config, "use_cache") else {}),
        **batch.choices,
        "loss": "the model's own",
    }
    several = len(_names(_mapping(task.mapping).get(config.model_type))) > 1
    kept = _kept(config) | ({"architectures": [name]} if several else {})
    return GeneratedTarget(reference.text, choices, _body(task, kept, dtype, batch))


def _takes_labels(model: Any) -> bool:  # noqa: ANN401 - of any class
    """Return whether a model's step can have a loss; one that hands all that it is given to its base class may."""
    parameters = inspect.signature(type(model).forward).parameters
    named = [name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD and name != "self"]
    return not named or any(name in named for name in _LABELS)


def _complete(task: Task, config: Any) -> None:  # noqa: ANN401 - a configuration of any class
    """Set what a step asks of a configuration, where it leaves that open."""
    has_pads = task.auto == "AutoModelForSequenceClassification" or config.is_encoder_decoder
    if has_pads and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    if task.auto == "AutoModelForSequenceClassification" and config.problem_type is None and config.num_labels > 1:
        # Of any kind the model would find so by itself; one of them looks for the labels' values first.
        config.problem_type = "single_label_classification"


def _config_file(reference: Reference, keywords: dict[str, object]) -> Path:
    """Return the `config.json` of a directory, of the cache, or of the hub where that may be asked."""
    name = str(reference.model)
    if Path(name).is_absolute():
        path = Path(name) / "config.json"
        if path.is_file():
            return path
        why = "it is an adapter of another model" if (Path(name) / "adapter_config.json").is_file() else ""
        raise TargetError(
            f"`{reference.location}` has no `config.json`{': ' * bool(why)}{why}",
            hint="name the directory of a model that `save_pretrained` wrote, or its id on the hub",
        )
    hub: Any = library("huggingface_hub", reference)
    try:
        hub.utils.validate_repo_id(name)
    except hub.errors.HFValidationError:
        raise TargetError(
            f"`{name}` is neither a directory in `{reference.directory}` nor a model's id",
            hint="name a directory with a `config.json`, or an id such as `hf:bert-base-uncased`",
        ) from None
    revision = keywords.get("revision")
    if not isinstance(revision, str | None):
        raise TargetError(
            f"`revision` of `{reference.text}` is {revision!r}, not text",
            hint="name a branch, a tag or a commit: `revision='main'`",
        )
    cached = hub.try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(cached) if isinstance(cached, str) else _fetched(hub, reference, revision)


def _fetched(hub: Any, reference: Reference, revision: object) -> Path:  # noqa: ANN401 - huggingface_hub
    """Fetch the one small file, unless the environment says that nothing may be fetched."""
    name, again = str(reference.model), f"`hf download {reference.model} config.json`"
    if hub.constants.HF_HUB_OFFLINE:
        raise NoAnswerError(
            f"the configuration of `{reference.location}` is not in the cache, and `HF_HUB_OFFLINE` is set",
            hint=f"fetch it once where there is a network, with {again}, or name a directory with its `config.json`",
        )
    missing = (hub.errors.RepositoryNotFoundError, hub.errors.EntryNotFoundError, hub.errors.RevisionNotFoundError)
    try:
        return Path(hub.hf_hub_download(name, "config.json", revision=revision))
    except hub.errors.LocalEntryNotFoundError as error:  # which is one of those that are missing, and says no network
        problem = summary(error.__cause__ or error)
    except missing as error:  # a private or gated one is told so as well
        raise TargetError(
            f"the hub has no `config.json` of `{name}`: {summary(error)}",
            hint="name a model of transformers as on its page, with `hf auth login` for one that is private or gated; "
            "no directory of that name exists either",
        ) from None
    except Exception as error:  # noqa: BLE001 - of a network
        problem = summary(error)
    raise NoAnswerError(
        f"the configuration of `{reference.location}` is not in the cache and cannot be fetched: {problem}",
        hint=f"see that {again} works, or name a directory with its `config.json`",
    )


def _read(reference: Reference, path: Path) -> dict[str, Any]:
    """Read a configuration as data, and refuse what it alone shows to be no target."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TargetError(f"`{path}` cannot be read: {error}", hint="it has to be JSON") from None
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise TargetError(
            f"`{path}` has no `model_type`, so it is no configuration of transformers",
            hint="name the folder of the one model that is trained; a pipeline of diffusers holds several",
        )
    if data.get("quantization_config") is not None:
        raise refused(reference, "its weights are quantised, and are not trained as they are")
    return data


def _config(
    transformers: Any,  # noqa: ANN401 - the library
    reference: Reference,
    path: Path,
    data: dict[str, Any],
    keywords: dict[str, object],
) -> Any:  # noqa: ANN401 - a configuration of any class
    if data["model_type"] not in transformers.CONFIG_MAPPING:
        own = data.get("auto_map") is not None
        why = "which is code of its repository, and that is not run" if own else "which this transformers does not know"
        raise refused(reference, f"its `model_type` is `{data['model_type']}`, {why}")
    settings = {name: value for name, value in keywords.items() if name not in _OURS}
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(path.parent), local_files_only=True, trust_remote_code=False
        )
        unknown = [name for name in settings if not hasattr(config, name)]
        for name, value in settings.items():
            setattr(config, name, value)
        if isinstance(getattr(config, "image_size", None), int) and "image_size" in keywords:
            config.image_size = keywords["image_size"]
    except Exception as error:  # noqa: BLE001 - the library's own, and of any configuration
        raise refused(reference, f"transformers cannot read its configuration: {summary(error)}") from None
    if unknown:
        raise TargetError(
            f"the configuration of `{reference.location}` has no `{unknown[0]}`",
            hint=f"keywords are its settings, or {', '.join(f'`{name}`' for name in _OURS)}",
        )
    return config


def _head(
    reference: Reference,
    transformers: Any,  # noqa: ANN401 - the library
    config: Any,  # noqa: ANN401 - a configuration of any class
    architecture: str,
) -> tuple[Task, str, str]:
    """Return what is trained: the task, the class, and where that is from."""
    kind, sections = config.model_type, [*getattr(config, "sub_configs", ())]
    if kind in _REFUSED:
        raise refused(reference, _REFUSED[kind])
    if getattr(config, "default_language", "") is None:
        raise refused(reference, 'its step takes a language; name one as it does: `default_language="en_XX"`')
    if any(word in name for name in sections for word in _MODALITIES):
        listed = ", ".join(f"`{name}`" for name in sorted(sections))
        raise refused(reference, f"`{architecture or kind}` has several inputs ({listed}), whose sizes nothing tells")
    known = {(task, name) for task in TASKS for name in _classes(task, kind)}
    for task, name in sorted(known, key=lambda one: TASKS.index(one[0])):
        if name == architecture:
            is_given = "architecture" in reference.kwargs
            return task, name, "as given" if is_given else "`architectures` of its configuration"
    bases = {*_names(_mapping("MODEL_MAPPING_NAMES").get(kind))}
    if architecture and architecture not in bases:
        if not hasattr(transformers, architecture):
            raise refused(reference, f"`{architecture}` is no class of transformers; code of a repository is not run")
        others = sorted(name for _, name in known)
        listed = f'; it may be trained as {", ".join(others)}: `architecture="{others[0]}"`' if others else ""
        raise refused(reference, f"what `{architecture}` is trained on cannot be known from its configuration{listed}")
    if not known:
        raise refused(reference, f"`{architecture or kind}` has no loss that its configuration tells")
    first = (lambda task: task.auto != "AutoModelForCausalLM") if getattr(config, "is_decoder", False) else TASKS.index
    task, name = min(known, key=lambda one: (first(one[0]), TASKS.index(one[0])))
    return task, name, f"since `{architecture}` has no loss" if architecture else "since it names no `architectures`"


def _mapping(name: str) -> dict[str, Any]:
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - where it is installed

    return dict(getattr(modeling_auto, name, {}))


def _names(entry: object) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)  # type: ignore[arg-type]


def _classes(task: Task, kind: str) -> list[str]:
    names = _names(_mapping(task.mapping).get(kind))
    return [name for name in names if not task.classes or name in task.classes]


def _dtype(reference: Reference, config: Any, keywords: dict[str, object]) -> tuple[str, str]:  # noqa: ANN401
    """Return the type of the weights by name, and where it is from."""
    given, own = keywords.get("dtype"), getattr(config, "dtype", None)
    name = str(given or own or "float32").removeprefix("torch.")
    if name not in ("float32", "bfloat16", "float16"):
        raise TargetError(
            f"`dtype` of `{reference.text}` is `{name}`, which is not trained in",
            hint='give `dtype="float32"`, or `bfloat16` or `float16`',
        )
    note = "`dtype` of its configuration, as `from_pretrained` loads them" if own else "default"
    if given:
        note = "as given"
    return name, f"{name}, {note}"


def _positions(model: Any, config: Any) -> int | None:  # noqa: ANN401 - a configuration of any class
    """Return how many positions a sequence may have where a table has a row for each; None where there is none."""
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int):
        return None
    try:
        tokens = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # a model without a table of tokens
        tokens = None
    tables = [one for one in model.modules() if isinstance(one, torch.nn.Embedding) and one is not tokens]
    of_positions = [one for one in tables if most <= one.num_embeddings <= most + _MOST_NEAR]
    # Where a row stands for padding, positions begin after it.
    rows = [one.num_embeddings - (0 if one.padding_idx is None else one.padding_idx + 1) for one in of_positions]
    return min([most, *rows]) if rows else None


def _preprocessor(path: Path) -> dict[str, Any]:
    """Return the settings of the model's preprocessor where they lie beside its configuration."""
    file = path.with_name("preprocessor_config.json")
    if not file.is_file():
        return {}
    data = json.loads(file.read_text(encoding="utf-8"))
    return data if isinstance(data, dict) else {}


def _kept(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a configuration of any class
    """Return the configuration as the file has it: without what belongs to weights, and with a number of labels."""
    kept = {name: value for name, value in config.to_diff_dict().items() if name not in _NOT_KEPT}
    labels = {} if config.num_labels == type(config)().num_labels else {"num_labels": config.num_labels}
    return {"model_type": kept.pop("model_type"), **kept, **labels}


def _body(task: Task, config: dict[str, Any], dtype: str, batch: Batch) -> str:
    """Return the imports, the configuration and the functions."""
    of_model = [name for name in batch.sizes if name in config and config[name] == batch.sizes[name]]
    settings = "".join(
        f"    {literal(name)}: {literal(value)},\n" for name, value in config.items() if name not in of_model
    )
    keywords = ", ".join(f"{name}={size}" for name, size in batch.sizes.items())
    model_keywords = ", ".join(f"{name}={config[name]}" for name in of_model)
    passed = "".join(f", {name}={name}" for name in of_model)
    lines = "\n".join(f"    {line}" if line else "" for line in batch.lines)
    return f"""\
import torch
from transformers import AutoConfig, {task.auto}

CONFIGURATION = {{
{settings}}}


def build_model({"*, " * bool(of_model)}{model_keywords}):
    config = AutoConfig.for_model(**CONFIGURATION{passed})
    return {task.auto}.from_config(config, dtype=torch.{dtype})


def make_batch(batch_size{", *, " * bool(keywords)}{keywords}):
{lines}


def training_step(model, batch):
    return model(**batch).loss
"""
