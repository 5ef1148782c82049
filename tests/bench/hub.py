"""The one-line targets of timm, torchvision and transformers: each probed, ten beside a file that is written by hand.

Two probes run at once. A row tells the largest micro-batch, the recommended one and the peak of each trial; a file that
is written by hand must have the same, to the byte. Every connection that a worker begins is counted, and there must be
none.

Usage: python tests/bench/hub.py [NAME_CONTAINS]
"""

from __future__ import annotations

import importlib.metadata
import os
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
from oomdoctor.multi_card.pool import Answer, PooledProbe, probe_all
from oomdoctor.request import build_request
from oomdoctor.results import Outcome

CAPACITY = "6GiB"
JOBS = 2
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


_COUNTING = """
import os
import sys


def _note(event, arguments, path=os.environ["OOMDOCTOR_BENCH_CONNECTIONS"]):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        with open(path, "a") as file:
            print(event, arguments[-1], file=file)


sys.addaudithook(_note)
"""
"""Module that each interpreter imports as it starts, and which notes the connections that it begins."""


class Progress:
    """Prints each target as it ends, and keeps its seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def started(self, case: PooledProbe) -> None:
        """Pass over it."""

    def finished(self, case: PooledProbe, answer: Answer, *, seconds: float) -> None:
        """Keep the seconds, and print how it ended."""
        self.seconds[case.name] = round(seconds, 1)
        print(f"{case.name}: {findings(answer)['maximum'] or answer}, {seconds:.1f} s", flush=True)


def findings(answer: Answer) -> dict[str, Any]:
    """What a probe found, with the peaks of all its trials that fit, by size; or why there is no answer."""
    if isinstance(answer, OomdoctorError):
        return {"maximum": 0, "error": answer.message, "details": (answer.details or "")[-2000:]}
    sizes = answer.result.micro_batch
    trials = [trial for trial in answer.result.trials if trial.outcome is Outcome.FITS]
    peaks = {
        str(trial.micro_batch): [trial.peak_allocated_bytes, trial.peak_reserved_bytes]
        for trial in sorted(trials, key=lambda trial: trial.micro_batch)
    }
    return {"maximum": sizes.maximum, "recommended": sizes.recommended, "peak_bytes": peaks}


def cases_in(folder: Path, words: str) -> list[PooledProbe]:
    """Return every target with these letters in its name, and the files that are written by hand."""
    targets = [
        *(f"timm:{name}" for name in TIMM),
        *(f"torchvision:{name}" for name in TORCHVISION),
        *(f"hf:{name}{KEYWORDS.get(name, '')}" for name in TRANSFORMERS),
    ]
    named = {}
    for place, target in enumerate(target for target in targets if words in target):
        if target.startswith("hf:"):
            write_configuration(folder, target.removeprefix("hf:").partition("(")[0])
        named[target] = target
        if target in BY_HAND:
            named[f"{target}, by hand"] = f"by_hand_{place}.py"
            (folder / f"by_hand_{place}.py").write_text(BY_HAND[target], encoding="utf-8")
    question = {"gpu": "rtx-4090", "memory": CAPACITY, "directory": folder, "engine": "null"}
    return [
        PooledProbe(name, replace(build_request(target, **question), profiles=False))  # type: ignore[arg-type]
        for name, target in named.items()
    ]


def main() -> int:
    """Run the bench; 1 where a target has no answer, another one than the file by hand, or a connection began."""
    words = sys.argv[1] if len(sys.argv) > 1 else ""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder, connections = Path(name), Path(name) / "connections"
        (folder / "counting").mkdir()
        (folder / "counting/sitecustomize.py").write_text(_COUNTING, encoding="utf-8")
        connections.touch()
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "OOMDOCTOR_BENCH_CONNECTIONS": str(connections),
            "PYTHONPATH": os.pathsep.join([str(folder / "counting"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        progress, cases = Progress(), cases_in(folder, words)
        answers = probe_all(cases, progress, jobs=JOBS)
        opened = connections.read_text(encoding="utf-8").splitlines()
    found = {case.name: findings(answer) for case, answer in zip(cases, answers, strict=True)}
    rows = [{"target": name, **found[name], "seconds": progress.seconds[name]} for name in found]
    wrong = [name for name in found if "error" in found[name]]
    wrong += [name for name in BY_HAND if name in found and found[name] != found[f"{name}, by hand"]]
    versions = {name: importlib.metadata.version(name) for name in ("torch", "timm", "torchvision", "transformers")}
    if not words:
        about = {"machine": machine(), "versions": versions, "memory": CAPACITY, "jobs": JOBS}
        seconds = round(time.perf_counter() - began, 1)
        save(RESULTS / "hub.json", {**about, "seconds": seconds, "connections": opened, "rows": rows})
    print(f"{len(rows)} probes, {len(opened)} connections; no answer or another one than by hand: {wrong}")
    return 1 if wrong or opened else 0


if __name__ == "__main__":
    sys.exit(main())
