"""Batches of transformers' models by what they are trained on, with labels in range; as lines of a generated file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.target.hubs.generated import refused, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.target.reference import Reference

_LONGEST: Final = 4096
_USUAL_LENGTH: Final = 512
_USUAL_IMAGE: Final = 224
_DENSE_IMAGE: Final = 512
_SAMPLING_RATE: Final = 16_000
_SECONDS: Final = 10
_SAMPLES_A_LABEL: Final = 1_000
_CHOICES: Final = 4


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What a batch is made from.

    Attributes:
        reference: The target.
        config: The model's configuration.
        keywords: Those of the target.
        dtype: Type of the weights, and of what the model takes that is no token.
        positions: Rows of its table of positions; None where it has none.
        preprocessor: The settings of its preprocessor, as far as they lie beside its configuration.
    """

    reference: Reference
    config: Any
    keywords: Mapping[str, object]
    dtype: str
    positions: int | None
    preprocessor: Mapping[str, Any]

    def given(self, name: str) -> int | None:
        """Return a size that the target gives; None where it does not.

        Raises:
            TargetError: It is no size.
        """
        return whole(name, self.keywords[name], self.reference) if name in self.keywords else None

    @property
    def floats(self) -> str:
        """Return the argument by which a batch has the model's type; empty for the usual one."""
        return "" if self.dtype == "float32" else f", dtype=torch.{self.dtype}"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as source.

    Attributes:
        sizes: Keywords of `make_batch` besides its size.
        lines: Its body.
        choices: What was chosen, by its name, with where it is from.
    """

    sizes: Mapping[str, int]
    lines: tuple[str, ...]
    choices: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """What a model is trained on.

    Attributes:
        auto: Class of transformers that builds it.
        mapping: Table of transformers with the classes by type of model.
        batch: Makes the batch.
        classes: The only classes of the table that are meant; empty for all.
    """

    auto: str
    mapping: str
    batch: Callable[[BatchSettings], Batch] = field(compare=False)
    classes: tuple[str, ...] = ()


def _vocabulary(settings: BatchSettings) -> int:
    size = getattr(settings.config.get_text_config(), "vocab_size", None)
    if not isinstance(size, int):
        raise refused(settings.reference, "its configuration has no `vocab_size`")
    return size


def _length(settings: BatchSettings, name: str = "sequence_length") -> tuple[int, str]:
    """Return the length of a sequence of tokens, and where it is from."""
    given, most = settings.given(name), getattr(settings.config.get_text_config(), "max_position_embeddings", None)
    if given is not None:
        return given, f"{given} tokens, as given"
    if settings.positions is not None:
        return settings.positions, f"{settings.positions} tokens, all positions that the model has"
    if isinstance(most, int) and most > 0:
        if most <= _LONGEST:
            return most, f"{most} tokens, `max_position_embeddings` of its configuration"
        return _LONGEST, f"{_LONGEST} tokens; `max_position_embeddings` of its configuration is {most}"
    return _USUAL_LENGTH, f"{_USUAL_LENGTH} tokens; its configuration has no length"


def _check(settings: BatchSettings, *names: str) -> tuple[str, ...]:
    """Return the lines that refuse what no table of positions has: an index that a GPU alone would check."""
    if settings.positions is None:
        return ()
    longest = names[0] if len(names) == 1 else f"max({', '.join(names)})"
    return (
        f"if {longest} > {settings.positions}:",
        f'    raise ValueError("the model has {settings.positions} positions")',
    )


def _text(settings: BatchSettings, labels: str, choice: str, *, more: tuple[str, ...] = ()) -> Batch:
    """Return a batch of tokens, `labels` being the expression of their labels."""
    length, note = _length(settings)
    lines = (
        *_check(settings, "sequence_length"),
        f"tokens = torch.randint({_vocabulary(settings)}, (batch_size, sequence_length))",
        *more,
        f'return {{"input_ids": tokens, {labels}}}',
    )
    choices = {"sequence_length": note, "tokens": "random, without padding", "labels": choice}
    return Batch({"sequence_length": length}, lines, choices)


def _causal(settings: BatchSettings) -> Batch:
    return _text(settings, '"labels": tokens.clone()', "the tokens themselves, which the model shifts")


def _masked(settings: BatchSettings) -> Batch:
    lines = (
        "is_masked = torch.rand(tokens.shape) < 0.15",
        "labels = torch.where(is_masked, tokens, -100)  # the loss passes over -100",
    )
    return _text(settings, '"labels": labels', "15 % of the tokens", more=lines)


def _replaced(settings: BatchSettings) -> Batch:
    return _text(settings, '"labels": torch.randint(2, tokens.shape)', "for each token, whether it was replaced")


def _pretraining(settings: BatchSettings) -> Batch:
    return _text(
        settings,
        '"labels": tokens.clone(), "next_sentence_label": torch.randint(2, (batch_size,))',
        "all tokens, and whether the next sentence follows",
    )


def _sequences(settings: BatchSettings) -> Batch:
    if settings.config.is_encoder_decoder:
        raise refused(settings.reference, "its step depends on where a sequence ends, which a GPU has to read back")
    return _text(settings, f'"labels": {_classes(settings)[0]}', _classes(settings)[1])


def _classes(settings: BatchSettings) -> tuple[str, str]:
    """Return the expression of one label a sample, and what it is."""
    count, kind = settings.config.num_labels, settings.config.problem_type
    if kind == "multi_label_classification":
        return f"torch.randint(2, (batch_size, {count})).float()", f"{count} a sample, each 0 or 1"
    if kind == "regression" or (count == 1 and kind is None):
        shape = "batch_size" if count == 1 else f"batch_size, {count}"
        return f"torch.randn({shape}{settings.floats})", f"{count} number a sample"
    return f"torch.randint({count}, (batch_size,))", f"{count} classes, `num_labels` of its configuration"


def _tokens(settings: BatchSettings) -> Batch:
    count = settings.config.num_labels
    labels = f'"labels": torch.randint({count}, tokens.shape)'
    return _text(settings, labels, f"one of {count} classes a token, `num_labels` of its configuration")


def _questions(settings: BatchSettings) -> Batch:
    ends = ", ".join(f'"{end}_positions": torch.randint(sequence_length, (batch_size,))' for end in ("start", "end"))
    return _text(settings, ends, "first and last token of the answer")


def _multiple_choice(settings: BatchSettings) -> Batch:
    length, note = _length(settings)
    choices = settings.given("choices") or _CHOICES
    lines = (
        *_check(settings, "sequence_length"),
        f"tokens = torch.randint({_vocabulary(settings)}, (batch_size, choices, sequence_length))",
        'return {"input_ids": tokens, "labels": torch.randint(choices, (batch_size,))}',
    )
    said = {"sequence_length": note, "choices": f"{choices} a sample", "labels": "the choice that is right"}
    return Batch({"sequence_length": length, "choices": choices}, lines, said)


def _translation(settings: BatchSettings) -> Batch:
    length, note = _length(settings)
    target = settings.given("target_length") or length
    lines = (
        *_check(settings, "sequence_length", "target_length"),
        f"tokens = torch.randint({_vocabulary(settings)}, (batch_size, sequence_length))",
        f"labels = torch.randint({_vocabulary(settings)}, (batch_size, target_length))",
        'return {"input_ids": tokens, "labels": labels}',
    )
    said = f"{target} tokens, {'as given' if 'target_length' in settings.keywords else 'as the sequence'}"
    choices = {"sequence_length": note, "target_length": said, "tokens": "random, without padding"}
    return Batch({"sequence_length": length, "target_length": target}, lines, choices)


def _side(settings: BatchSettings, usual: int) -> tuple[int | tuple[int, int], str]:
    """Return the side of an image, or height and width where they differ, and where that is from."""
    if (given := settings.given("image_size")) is not None:
        return given, f"{given} x {given} pixels, as given"
    for source, sizes in (("configuration", vars(settings.config)), ("preprocessor", settings.preprocessor)):
        for name in ("image_size", "crop_size", "size"):
            if (sides := _sides(sizes.get(name))) is not None:
                side = sides[0] if sides[0] == sides[1] else sides
                return side, f"{sides[0]} x {sides[1]} pixels, `{name}` of its {source}"
    return usual, f"{usual} x {usual} pixels; its configuration has no size"


def _sides(value: object) -> tuple[int, int] | None:
    match value:
        case int(side) | {"shortest_edge": int(side)}:
            return side, side
        case [int(height), int(width)] | {"height": int(height), "width": int(width)}:
            return height, width
    return None


def _image(settings: BatchSettings, labels: str, choice: str, usual: int = _USUAL_IMAGE) -> Batch:
    """Return a batch of images, `labels` being what goes with them; `{sides}` in it is height and width."""
    side, note = _side(settings, usual)
    channels = getattr(settings.config, "num_channels", 3)
    sides = "image_size, image_size" if isinstance(side, int) else f"{side[0]}, {side[1]}"
    lines = (
        f"images = torch.randn(batch_size, {channels}, {sides}{settings.floats})",
        f'return {{"pixel_values": images{labels.format(sides=sides)}}}',
    )
    sizes = {"image_size": side} if isinstance(side, int) else {}
    return Batch(sizes, lines, {"image_size": note, "labels": choice})


def _images(settings: BatchSettings) -> Batch:
    labels, note = _classes(settings)
    return _image(settings, f', "labels": {labels}', note)


def _dense_images(settings: BatchSettings) -> Batch:
    count = settings.config.num_labels
    labels = f', "labels": torch.randint({count}, (batch_size, {{sides}}))'
    return _image(settings, labels, f"one of {count} classes a pixel, `num_labels` of its configuration", _DENSE_IMAGE)


def _masked_images(settings: BatchSettings) -> Batch:
    return _image(settings, "", "the images themselves, of which the model masks a part")


def _audio(settings: BatchSettings, labels: str, choice: str) -> Batch:
    """Return a batch of sound as samples."""
    rate = settings.preprocessor.get("sampling_rate", _SAMPLING_RATE)
    length = settings.given("audio_length") or _SECONDS * rate
    note = "as given" if "audio_length" in settings.keywords else f"{_SECONDS} s at {rate} Hz"
    lines = (
        f"audio = torch.randn(batch_size, audio_length{settings.floats})",
        f'return {{"input_values": audio, "labels": {labels}}}',
    )
    return Batch({"audio_length": length}, lines, {"audio_length": f"{length} samples, {note}", "labels": choice})


def _speech(settings: BatchSettings) -> Batch:
    if not hasattr(settings.config, "conv_stride"):
        raise refused(settings.reference, "what its feature extractor makes of sound cannot be known")
    labels = f"torch.randint(1, {_vocabulary(settings)}, (batch_size, audio_length // {_SAMPLES_A_LABEL}))"
    return _audio(settings, labels, f"one token for each {_SAMPLES_A_LABEL} samples, about what English speech has")


def _sounds(settings: BatchSettings) -> Batch:
    config, (labels, note) = settings.config, _classes(settings)
    if hasattr(config, "conv_stride"):
        return _audio(settings, labels, note)
    if not hasattr(config, "max_length") or not hasattr(config, "num_mel_bins"):
        raise refused(settings.reference, "what its feature extractor makes of sound cannot be known")
    lines = (
        f"spectrograms = torch.randn(batch_size, {config.max_length}, {config.num_mel_bins}{settings.floats})",
        f'return {{"input_values": spectrograms, "labels": {labels}}}',
    )
    said = f"{config.max_length} frames of {config.num_mel_bins} bins, from its configuration"
    return Batch({}, lines, {"spectrogram": said, "labels": note})


def _transcripts(settings: BatchSettings) -> Batch:
    config = settings.config
    if config.model_type not in ("whisper", "speech_to_text"):
        raise refused(settings.reference, "what its feature extractor makes of sound cannot be known")
    is_whisper = config.model_type == "whisper"
    frames = 2 * config.max_source_positions if is_whisper else config.max_source_positions
    bins = config.num_mel_bins if is_whisper else config.input_feat_per_channel * config.input_channels
    shape = f"{bins}, {frames}" if is_whisper else f"{frames}, {bins}"
    target, most = settings.given("target_length") or config.max_target_positions, config.max_target_positions
    lines = (
        f"if target_length > {most}:",
        f'    raise ValueError("the model has {most} positions of text")',
        f"features = torch.randn(batch_size, {shape}{settings.floats})",
        f"labels = torch.randint({_vocabulary(settings)}, (batch_size, target_length))",
        'return {"input_features": features, "labels": labels}',
    )
    choices = {
        "features": f"{frames} frames of {bins} bins, from its configuration",
        "target_length": f"{target} tokens, `max_target_positions` of its configuration is {most}",
    }
    return Batch({"target_length": target}, lines, choices)


TASKS: Final = (
    Task("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", _transcripts),
    Task("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", _translation),
    Task("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", _masked),
    Task("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", _causal),
    Task("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", _images),
    Task("AutoModelForSemanticSegmentation", "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES", _dense_images),
    Task("AutoModelForCTC", "MODEL_FOR_CTC_MAPPING_NAMES", _speech),
    Task("AutoModelForAudioClassification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", _sounds),
    Task("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", _sequences),
    Task("AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", _tokens),
    Task("AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", _questions),
    Task("AutoModelForMultipleChoice", "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES", _multiple_choice),
    Task("AutoModelForPreTraining", "MODEL_FOR_PRETRAINING_MAPPING_NAMES", _pretraining, ("BertForPreTraining",)),
    Task("AutoModelForPreTraining", "MODEL_FOR_PRETRAINING_MAPPING_NAMES", _replaced, ("ElectraForPreTraining",)),
    Task("AutoModelForPreTraining", "MODEL_FOR_PRETRAINING_MAPPING_NAMES", _masked_images, ("ViTMAEForPreTraining",)),
)
"""Tasks, first the one that a model without a head is trained on."""
