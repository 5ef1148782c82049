"""The one-line targets of timm, torchvision and transformers: each probed, ten beside a file that is written by hand.

Usage: python tests/bench/hub.py [NAME_CONTAINS]
"""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from hub_by_hand import BY_HAND
from measuring import RESULTS, machine, save

from oomdoctor.errors import OomdoctorError
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.progress import SilentProgress
from oomdoctor.request import build_request
from oomdoctor.trial.probe import probe
from oomdoctor.trial.process import CancelToken

CAPACITY = "6GiB"
TIMM = (
    *("resnet18", "resnet50", "resnet50d", "resnext50_32x4d", "wide_resnet50_2", "seresnet50", "densenet121"),
    *("efficientnet_b0", "efficientnet_b3", "tf_efficientnetv2_s", "mobilenetv3_large_100", "mobilenetv4_conv_small"),
    *("regnety_016", "convnext_tiny", "convnextv2_tiny", "inception_v3", "xception41", "vgg16_bn", "repvgg_b0"),
    *("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224.augreg_in21k", "deit3_small_patch16_224"),
    *("vit_small_patch14_dinov2", "swin_tiny_patch4_window7_224", "mixer_b16_224", "maxvit_tiny_tf_224"),
    *("beit_base_patch16_224", "coat_tiny", "edgenext_small"),
)
TORCHVISION = (
    *("alexnet", "vgg11", "resnet18", "resnet50", "resnext50_32x4d", "densenet121", "googlenet", "inception_v3"),
    *("mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0", "shufflenet_v2_x1_0", "squeezenet1_1", "efficientnet_b0"),
    *("regnet_y_400mf", "convnext_tiny", "vit_b_16", "swin_t", "maxvit_t", "deeplabv3_resnet50"),
)
_SMALL = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", {}),
    "roberta": ("RobertaConfig", "RobertaForSequenceClassification", {"max_position_embeddings": 514}),
    "distilbert": ("DistilBertConfig", "DistilBertForTokenClassification", {"num_labels": 9}),
    "electra": ("ElectraConfig", "ElectraForPreTraining", {}),
    "albert": ("AlbertConfig", "AlbertForQuestionAnswering", {**_SMALL, "embedding_size": 128}),
    "deberta": ("DebertaV2Config", "DebertaV2ForSequenceClassification", {**_SMALL, "num_labels": 1}),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", {**_SMALL, "layer_types": None}),
    "sentences": ("BertConfig", "BertModel", {"num_hidden_layers": 6}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**_SMALL, "num_key_value_heads": 2, "dtype": "bfloat16"}),
    "qwen": ("Qwen2Config", "Qwen2ForCausalLM", {**_SMALL, "num_key_value_heads": 2, "layer_types": None}),
    "opt": ("OPTConfig", "OPTForCausalLM", {"num_hidden_layers": 4}),
    "mistral": ("MistralConfig", "MistralForSequenceClassification", {**_SMALL, "num_key_value_heads": 2}),
    "t5": ("T5Config", "T5ForConditionalGeneration", {}),
    "bart": ("BartConfig", "BartForConditionalGeneration", {"encoder_layers": 2, "decoder_layers": 2}),
    "vit": ("ViTConfig", "ViTForImageClassification", {"num_labels": 10}),
    "convnext": ("ConvNextConfig", "ConvNextForImageClassification", {}),
    "segformer": ("SegformerConfig", "SegformerForSemanticSegmentation", {"num_labels": 19}),
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2ForCTC", {"num_hidden_layers": 4}),
    "ast": ("ASTConfig", "ASTForAudioClassification", {"num_hidden_layers": 4, "num_labels": 35}),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", {}),
}
"""Class of the configuration, the architecture, and settings: of the published size, or cut in layers and width."""


KEYWORDS = {"modernbert": "(sequence_length=512)", "qwen": "(sequence_length=512)"}
"""Of those whose longest sequence has logits of a GiB and more."""


def write_configuration(folder: Path, name: str) -> Path:
    """Write the `config.json` of a model as `save_pretrained` does; no network is needed."""
    kind, architecture, settings = TRANSFORMERS[name]
    settings = {key: value for key, value in settings.items() if value is not None}
    getattr(transformers, kind)(**settings, architectures=[architecture]).save_pretrained(folder / name)
    return folder / name


def answer(pool: WorkerPool, target: str, folder: Path) -> dict[str, object]:
    """What a probe finds, or how it ends."""
    request = build_request(target, gpu="rtx-4090", memory=CAPACITY, directory=folder, engine="null")
    request = replace(request, profiles=False)
    began = time.perf_counter()
    try:
        result = probe(request, SilentProgress(), start=pool.start).result
    except OomdoctorError as error:
        return {"error": error.message, "details": (error.details or "")[-2000:]}
    found = {"maximum": result.micro_batch.maximum, "recommended": result.micro_batch.recommended}
    return {**found, "seconds": round(time.perf_counter() - began, 1)}


def main() -> int:
    """Run the bench; 1 where a target has no answer, or another one than the file that is written by hand."""
    words = sys.argv[1] if len(sys.argv) > 1 else ""
    targets = [
        *(f"timm:{name}" for name in TIMM),
        *(f"torchvision:{name}" for name in TORCHVISION),
        *(f"hf:{name}{KEYWORDS.get(name, '')}" for name in TRANSFORMERS),
    ]
    rows, failures = [], 0
    with tempfile.TemporaryDirectory() as name, WorkerPool(CancelToken()) as pool:
        folder = Path(name)
        for target in (target for target in targets if words in target):
            if target.startswith("hf:"):
                write_configuration(folder, target.removeprefix("hf:").partition("(")[0])
            row = {"target": target, **answer(pool, target, folder)}
            if target in BY_HAND:
                (folder / "by_hand.py").write_text(BY_HAND[target], encoding="utf-8")
                row["by_hand"] = answer(pool, "by_hand.py", folder)
            sizes = [(one.get("maximum"), one.get("recommended")) for one in (row, row.get("by_hand", row))]
            failures += "error" in row or sizes[0] != sizes[1]
            print(row, flush=True)
            rows.append(row)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "timm", "torchvision", "transformers")}
    if not words:
        save(RESULTS / "hub.json", {"machine": machine(), "versions": versions, "memory": CAPACITY, "rows": rows})
    print(f"{len(rows)} targets, {failures} without an answer or with another one than by hand")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
