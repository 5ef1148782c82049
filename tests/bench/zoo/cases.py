"""The models that engines are compared over: what is trained, how, and at which sizes.

Precision, optimizer, checkpointing, attention and card are spread over the models, so that each kind meets several;
`optimizers.py` puts each optimizer of `torch.optim` to the same layers. `LEFT_OUT` names what there is no truth of: the
null GPU, from which zeros are read, cannot run it as a GPU would, or each step takes other memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import oomdoctor.examples
from oomdoctor.target.reference import example_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oomdoctor.results import Precision

ZOO = Path(__file__).parent
EXAMPLES_FOLDER = Path(oomdoctor.examples.__file__).parent
CARD = "a100-sxm4-80gb"


@dataclass(frozen=True, slots=True)
class Case:
    """One model and how it is trained.

    Attributes:
        name: Unique, as a person would say it.
        target: As `oomdoctor probe` takes it in this folder.
        precision: How the step runs.
        sizes: Micro-batches at which peaks are compared; the peaks lie between 1 and 20 GiB.
        optimizer: Name of a `torch.optim` class where the file does not build one; None for AdamW.
        gpu: Catalogue card that is played, but for its memory.
        reads: What the step reads back from the GPU, and why zeros do no harm there; empty where it reads nothing.
        needs: Distribution that the model is built from; None for torch.
    """

    name: str
    target: str
    precision: Precision
    sizes: tuple[int, int]
    optimizer: str | None = None
    gpu: str = CARD
    reads: str = ""
    needs: str | None = None

    @property
    def family(self) -> str:
        """The file that holds it, by its name without ending; `examples` for the shipped ones."""
        return "examples" if self._module in example_names() else self._module

    @property
    def path(self) -> Path:
        """The file that holds it."""
        return (EXAMPLES_FOLDER if self.family == "examples" else ZOO) / f"{self._module}.py"

    @property
    def _module(self) -> str:
        return self.target.partition(":")[0].removesuffix(".py")


def needing(distribution: str, cases: Iterable[Case]) -> Iterator[Case]:
    """The cases as ones that are built from a distribution."""
    return (replace(case, needs=distribution) for case in cases)


_GLOBAL = "whether a token attends to all others: none does, and zeros say so too"

EXAMPLES = (
    Case("gpt2", "gpt2", "fp32", (2, 7)),
    Case("gpt2 bf16", "gpt2", "bf16", (3, 9), gpu="rtx-4090"),
    Case("gpt2 checkpointed", "gpt2:build_model(checkpoint=True)", "fp16", (4, 12), gpu="t4"),
    Case("resnet50", "resnet50", "fp32", (16, 128)),
    Case("resnet50 bf16", "resnet50", "bf16", (32, 200)),
    Case("vit_b16", "vit_b16", "bf16", (16, 96), gpu="h100-sxm-80gb"),
    Case("lstm", "lstm", "fp32", (40, 240)),
    Case("unet", "unet", "bf16", (1, 2)),
)

OF_TRANSFORMERS = (
    Case("bert", "text_encoders.py:build_model('bert')", "bf16", (5, 29)),
    Case("bert eager", "text_encoders.py:build_model('bert', attention='eager')", "fp32", (2, 13), optimizer="Adam"),
    Case(
        "roberta",
        "text_encoders.py:build_model('roberta', checkpoint=True, padded=True)",
        "bf16",
        (13, 69),
    ),
    Case("distilbert", "text_encoders.py:build_model('distilbert')", "fp32", (7, 36), optimizer="SGD"),
    Case("albert", "text_encoders.py:build_model('albert')", "fp16", (4, 22), optimizer="Adagrad"),
    Case("electra", "text_encoders.py:build_model('electra')", "fp16", (11, 57), gpu="t4"),
    Case("deberta-v2", "text_encoders.py:build_model('deberta-v2')", "bf16", (4, 21)),
    Case("mobilebert", "text_encoders.py:build_model('mobilebert')", "fp32", (5, 27), optimizer="Adamax"),
    Case("modernbert", "text_encoders.py:build_model('modernbert')", "bf16", (6, 31)),
    Case("convbert", "text_encoders.py:build_model('convbert', padded=True)", "bf16", (6, 32)),
    Case("nystromformer", "text_encoders.py:build_model('nystromformer', padded=True)", "fp32", (4, 20)),
    Case(
        "rembert",
        "text_encoders.py:build_model('rembert', padded=True)",
        "fp16",
        (5, 29),
        optimizer="NAdam",
    ),
    Case(
        "roformer",
        "text_encoders.py:build_model('roformer', padded=True)",
        "fp32",
        (4, 23),
        optimizer="RMSprop",
    ),
    Case("gpt2 of transformers", "text_decoders.py:build_model('gpt2', attention='eager')", "fp32", (1, 3)),
    Case("gpt_neo", "text_decoders.py:build_model('gpt_neo')", "fp16", (1, 5)),
    Case("gpt_neox", "text_decoders.py:build_model('gpt_neox')", "bf16", (2, 14)),
    Case("opt", "text_decoders.py:build_model('opt')", "fp16", (3, 16), optimizer="SGD", gpu="t4"),
    Case("bloom", "text_decoders.py:build_model('bloom')", "bf16", (1, 6)),
    Case("llama", "text_decoders.py:build_model('llama')", "bf16", (2, 11), gpu="rtx-4090"),
    Case("llama eager", "text_decoders.py:build_model('llama', attention='eager')", "bf16", (1, 5), optimizer="RAdam"),
    Case(
        "llama checkpointed",
        "text_decoders.py:build_model('llama', checkpoint='non-reentrant', padded=True)",
        "bf16",
        (5, 25),
    ),
    Case(
        "llama in bf16",
        "text_decoders.py:build_model('llama', checkpoint='reentrant', dtype='bfloat16', padded=True)",
        "fp32",
        (5, 28),
    ),
    Case("mistral", "text_decoders.py:build_model('mistral')", "bf16", (2, 12), optimizer="Adafactor"),
    Case("qwen2", "text_decoders.py:build_model('qwen2')", "fp32", (1, 9)),
    Case("qwen3", "text_decoders.py:build_model('qwen3')", "bf16", (2, 10), gpu="b200"),
    Case("gemma", "text_decoders.py:build_model('gemma')", "bf16", (2, 12)),
    Case("gemma2", "text_decoders.py:build_model('gemma2', attention='eager')", "bf16", (1, 4)),
    Case("phi", "text_decoders.py:build_model('phi')", "fp16", (1, 8)),
    Case("falcon", "text_decoders.py:build_model('falcon')", "bf16", (3, 16)),
    Case("olmo2", "text_decoders.py:build_model('olmo2')", "bf16", (2, 10)),
    Case("mixtral", "text_decoders.py:build_model('mixtral', dtype='bfloat16')", "fp32", (1, 8), gpu="h100-sxm-80gb"),
    Case(
        "qwen3_moe", "text_decoders.py:build_model('qwen3_moe', dtype='bfloat16')", "fp32", (2, 11), gpu="h100-sxm-80gb"
    ),
    Case("mamba", "state_spaces.py:build_model('mamba')", "fp32", (3, 18)),
    Case("mamba2", "state_spaces.py:build_model('mamba2')", "bf16", (7, 35)),
    Case("t5", "sequence_to_sequence.py:build_model('t5')", "fp32", (6, 33), optimizer="Adafactor"),
    Case("mt5", "sequence_to_sequence.py:build_model('mt5', checkpoint=True)", "bf16", (12, 60)),
    Case("bart", "sequence_to_sequence.py:build_model('bart', padded=True)", "fp16", (10, 50)),
    Case("pegasus", "sequence_to_sequence.py:build_model('pegasus', attention='eager')", "fp32", (4, 24)),
    Case("led", "sequence_to_sequence.py:build_model('led')", "fp32", (5, 25), reads=_GLOBAL),
    Case("vit", "images.py:build_model('vit')", "fp32", (30, 150)),
    Case("deit", "images.py:build_model('deit', attention='eager')", "fp16", (19, 99)),
    Case("beit", "images.py:build_model('beit')", "bf16", (26, 130)),
    Case("dinov2", "images.py:build_model('dinov2', checkpoint=True)", "bf16", (60, 300)),
    Case("swin", "images.py:build_model('swin')", "bf16", (38, 190)),
    Case("swinv2", "images.py:build_model('swinv2')", "fp32", (19, 96)),
    Case("convnext", "images.py:build_model('convnext', channels_last=True)", "bf16", (40, 200)),
    Case(
        "resnet of transformers",
        "images.py:build_model('resnet', channels_last=True)",
        "fp16",
        (52, 260),
        optimizer="SGD",
    ),
    Case("regnet", "images.py:build_model('regnet')", "fp32", (22, 110), optimizer="SGD"),
    Case("efficientnet", "images.py:build_model('efficientnet')", "bf16", (24, 120), optimizer="RMSprop"),
    Case("mobilenet_v2", "images.py:build_model('mobilenet_v2')", "fp32", (30, 150), optimizer="RMSprop"),
    Case("mobilevit", "images.py:build_model('mobilevit')", "bf16", (28, 140)),
    Case("focalnet", "images.py:build_model('focalnet')", "fp32", (19, 96)),
    Case("segformer", "pixels.py:build_segformer", "fp32", (7, 35)),
    Case("upernet", "pixels.py:build_upernet", "bf16", (3, 15)),
    Case("feature pyramid", "detection.py:build_pyramid", "fp16", (3, 10), optimizer="SGD"),
    Case("yolos", "detection.py:build_yolos", "fp32", (3, 15)),
    Case("wav2vec2", "speech.py:build_model('wav2vec2')", "bf16", (6, 28)),
    Case("hubert", "speech.py:build_model('hubert', checkpoint=True)", "fp32", (8, 32)),
    Case("wavlm", "speech.py:build_model('wavlm')", "fp32", (4, 20)),
    Case("whisper", "spectrograms.py:build_whisper", "bf16", (2, 9), gpu="h100-sxm-80gb"),
    Case("whisper checkpointed", "spectrograms.py:build_whisper(checkpoint=True, attention='eager')", "fp16", (6, 24)),
    Case("audio spectrogram transformer", "spectrograms.py:build_classifier", "bf16", (5, 24)),
    Case("clip", "images_and_text.py:build_clip", "bf16", (40, 160)),
    Case("siglip", "images_and_text.py:build_siglip", "fp32", (8, 40)),
    Case("blip", "images_and_text.py:build_blip", "bf16", (10, 50)),
)

OF_TORCH = (
    Case("unet with group norm", "pixels.py:build_unet(channels=32)", "bf16", (4, 20)),
    Case("cnn channels_last", "convolutions.py:build_plain(channels_last=True)", "bf16", (30, 150), optimizer="SGD"),
    Case("cnn", "convolutions.py:build_plain", "fp32", (16, 80), optimizer="Adadelta"),
    Case(
        "separable cnn",
        "convolutions.py:build_separable(width=128, channels_last=True)",
        "fp16",
        (50, 250),
        optimizer="RMSprop",
    ),
    Case("video cnn", "convolutions.py:build_video", "bf16", (12, 90)),
    Case("diffusion unet", "diffusion.py:build_unet", "bf16", (6, 40), gpu="rtx-4090"),
    Case("diffusion unet checkpointed", "diffusion.py:build_unet(checkpoint=True)", "fp32", (6, 40)),
    Case("diffusion transformer", "diffusion.py:build_transformer", "bf16", (3, 14), gpu="rtx-5090"),
    Case("transformer encoder", "sequences.py:build_encoder", "bf16", (12, 60)),
    Case("transformer encoder fp32", "sequences.py:build_encoder", "fp32", (8, 44), optimizer="ASGD"),
    Case("transformer", "sequences.py:build_encoder_decoder", "fp16", (15, 75), optimizer="Adam"),
    Case("bidirectional lstm", "sequences.py:build_lstm", "fp32", (20, 100)),
    Case("projected lstm", "sequences.py:build_lstm(projected=512)", "bf16", (20, 100)),
    Case("gru", "sequences.py:build_gru", "fp16", (30, 140)),
    Case("message passing", "graphs.py:build_messages", "fp32", (2, 15)),
    Case("graph attention", "graphs.py:build_attention", "bf16", (4, 40)),
    Case("embedding bags", "recommendation.py", "fp32", (15, 150), optimizer="Adagrad"),
    Case("decoder with tied weights", "training.py", "fp32", (4, 29)),
    Case("decoder with both", "training.py:build_model(own_gradient=True, clip=True)", "bf16", (5, 40)),
    Case("decoder with an average", "training.py:build_model(average=True, clip=True)", "fp16", (5, 35)),
    Case("decoder checkpointed", "training.py:build_model(checkpoint='non-reentrant', clip=True)", "bf16", (10, 60)),
    Case(
        "decoder checkpointed reentrant",
        "training.py:build_model(checkpoint='reentrant', average=True)",
        "fp16",
        (10, 60),
    ),
    Case("decoder with experts", "training.py:build_model(experts=True)", "fp32", (3, 20)),
    Case("AdamW fused", "optimizers.py:build_model(name='AdamW', fused=True)", "fp32", (2, 150)),
    Case("AdamW in a loop", "optimizers.py:build_model(name='AdamW', foreach=False)", "fp32", (2, 150)),
    Case("AdamW amsgrad", "optimizers.py:build_model(name='AdamW', amsgrad=True)", "bf16", (2, 150)),
    Case("Adam capturable", "optimizers.py:build_model(name='Adam', capturable=True)", "fp32", (2, 150)),
    Case("Adam fused", "optimizers.py:build_model(name='Adam', fused=True)", "fp16", (2, 150)),
    Case(
        "SGD with momentum",
        "optimizers.py:build_model(name='SGD', lr=0.1, momentum=0.9, nesterov=True)",
        "bf16",
        (10, 150),
    ),
    Case(
        "SGD in a loop",
        "optimizers.py:build_model(name='SGD', lr=0.1, momentum=0.9, weight_decay=0.0001, foreach=False)",
        "fp32",
        (10, 150),
    ),
    Case("RMSprop centred", "optimizers.py:build_model(name='RMSprop', momentum=0.9, centered=True)", "fp32", (2, 150)),
    Case("Adagrad fused", "optimizers.py:build_model(name='Adagrad', fused=True)", "fp32", (10, 150)),
    Case("Adadelta", "optimizers.py:build_model(name='Adadelta')", "bf16", (2, 150)),
    Case("Adafactor", "optimizers.py:build_model(name='Adafactor')", "fp32", (10, 150)),
    Case("ASGD", "optimizers.py:build_model(name='ASGD')", "fp32", (2, 150)),
    Case("NAdam", "optimizers.py:build_model(name='NAdam', foreach=False)", "bf16", (2, 150)),
    Case("RAdam", "optimizers.py:build_model(name='RAdam')", "fp32", (2, 150)),
    Case("Rprop", "optimizers.py:build_model(name='Rprop')", "fp32", (2, 150)),
    Case("Muon", "optimizers.py:build_model(name='Muon')", "fp32", (10, 150)),
)

OF_TIMM = (
    Case(
        "resnext of timm",
        "timm_models.py:build_model('resnext50_32x4d', channels_last=True)",
        "bf16",
        (30, 120),
        optimizer="SGD",
    ),
    Case("densenet of timm", "timm_models.py:build_model('densenet121')", "fp32", (12, 64), optimizer="SGD"),
    Case("mixer of timm", "timm_models.py:build_model('mixer_b16_224')", "fp16", (20, 110)),
    Case("eva02 of timm", "timm_models.py:build_model('eva02_base_patch14_224', checkpoint=True)", "bf16", (60, 350)),
    Case("hrnet of timm", "timm_models.py:build_model('hrnet_w18')", "fp32", (12, 70), optimizer="SGD"),
    Case("maxvit of timm", "timm_models.py:build_model('maxvit_tiny_rw_224')", "bf16", (12, 60)),
)

CASES = (
    *EXAMPLES,
    *needing("transformers", OF_TRANSFORMERS),
    *OF_TORCH,
    *needing("timm", OF_TIMM),
)

LEFT_OUT = {
    "bert with an own mask of ones": "`transformers` leaves out a mask that hides nothing, which it finds by reading "
    "it: zeros say that it hides something; the zoo gives no mask, or one that hides",
    "decoders with checkpoints and no mask": "`transformers` reads whether several texts are packed in one: zeros say "
    "so; in the zoo they have a mask",
    "mixture of experts in a loop": "it loops over the experts that some token was sent to, which it reads; in its "
    "place grouped products of bf16 weights on compute capability 9.0, which read nothing, and experts that choose",
    "detr": "it reads whether all is finite, which zeros deny, and clamps it then; in its place YOLOS, which DETR's "
    "heads are on",
    "detr's matching": "the cheapest match of queries and boxes is found on the CPU from what was computed; in its "
    "place the matches are drawn with the batch",
    "wav2vec2 with CTC": "the loss reads how long each sentence is; in its place the sound is classified",
    "m2m_100": "it skips layers by chance, so that no two steps take the same memory",
    "SparseAdam": "a sparse gradient is as long as a number of rows that is counted and read; the zoo's are dense",
}
