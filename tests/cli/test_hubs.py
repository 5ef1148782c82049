"""Models by the name that a library knows them by: the right head, loss, labels and sizes, and no network."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from run_python import run_program
from running import ROOT, Run

from oomdoctor.errors import EXIT_NO_ANSWER, EXIT_USAGE

_TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
_BART = {"vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("bert", _TEXT, "BertForMaskedLM"),
    "headless": ("bert", _TEXT, "BertModel"),
    "roberta": ("roberta", {**_TEXT, "num_labels": 1, "pad_token_id": 1}, "RobertaForSequenceClassification"),
    "llama": ("llama", {**_TEXT, "dtype": "bfloat16", "max_position_embeddings": 9000}, "LlamaForCausalLM"),
    "t5": ("t5", {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2}, ""),
    "vit": (
        "vit",
        {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "num_labels": 7},
        "ViTForImageClassification",
    ),
    "ast": (
        "audio-spectrogram-transformer",
        {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "max_length": 64, "num_mel_bins": 32},
        "ASTForAudioClassification",
    ),
    "mamba2": (
        "mamba2",
        {"hidden_size": 32, "num_hidden_layers": 1, "num_heads": 8, "head_dim": 8, "state_size": 8, "vocab_size": 99},
        "Mamba2ForCausalLM",
    ),
    "perceiver": (
        "perceiver",
        {"num_latents": 8, "d_latents": 16, "num_blocks": 1, "num_self_attends_per_block": 1, "num_labels": 4}
        | {"num_cross_attention_heads": 1, "num_self_attention_heads": 2},
        "PerceiverForImageClassificationConvProcessing",
    ),
    "teacher": ("deit", {}, "DeiTForImageClassificationWithTeacher"),
    "language": ("xmod", {}, "XmodForMaskedLM"),
    "clip": ("clip", {}, "CLIPModel"),
    "quantised": ("bert", {**_TEXT, "_written": {"quantization_config": {"quant_method": "gptq"}}}, "BertForMaskedLM"),
    "own_code": ("bert", {**_TEXT, "_written": {"auto_map": {"AutoModel": "mine.Mine"}}}, "MineForCausalLM"),
    "own_type": ("bert", {**_TEXT, "_written": {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}}, ""),
    "other_head": ("bert", _TEXT, "BertForNextSentencePrediction"),
}
MODULES = """
import torch
from torch.utils.data import DataLoader, TensorDataset


class Coder(torch.nn.Module):  # what of a LightningModule is used, without the seconds that its import takes
    automatic_optimization = True

    def __init__(self, width=4):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Linear(width, 16))
        self.example_input_array = torch.randn(3, 16)

    def training_step(self, batch, index):
        return {"loss": torch.nn.functional.mse_loss(self.layers(batch), batch)}

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Classifier(Coder):
    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.layers(x), y)


class WithLoader(Coder):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(1, 16)), collate_fn=lambda rows: torch.stack([x for x, in rows]))


class Heir(WithLoader):
    pass


class ByHand(Coder):
    automatic_optimization = False


class Data:
    def prepare_data(self):
        pass

    def setup(self, stage):
        self.train = TensorDataset(torch.randn(1, 16), torch.zeros(1, dtype=torch.long))

    def train_dataloader(self):
        return DataLoader(self.train)
"""
SHAPES = {
    "timm:test_vit(image_size=96)": {"0": [2, 3, 96, 96], "1": [2]},
    "torchvision:squeezenet1_1(num_classes=10)": {"0": [2, 3, 224, 224], "1": [2]},
    "hf:bert": {"input_ids": [2, 40], "labels": [2, 40]},
    "hf:somebody/bert": {"input_ids": [2, 40], "labels": [2, 40]},
    "hf:headless": {"input_ids": [2, 40], "labels": [2, 40]},
    "hf:roberta": {"input_ids": [2, 38], "labels": [2]},
    "hf:llama(sequence_length=16)": {"input_ids": [2, 16], "labels": [2, 16]},
    "hf:t5(target_length=8)": {"input_ids": [2, 512], "labels": [2, 8]},
    "hf:vit": {"pixel_values": [2, 3, 32, 32], "labels": [2]},
    "hf:ast": {"input_values": [2, 64, 32], "labels": [2]},
    "hf:mamba2(sequence_length=16)": {"input_ids": [2, 16], "labels": [2, 16]},
    "hf:perceiver": {"pixel_values": [2, 3, 56, 56], "labels": [2]},
    "lightning:mine.Coder(width=8)": {"0": [2, 16]},
    "lightning:mine.Heir": {"0": [2, 16]},
    "lightning:mine.Classifier(data='mine.Data')": {"0": [2, 16], "1": [2]},
}
REFUSED = {
    "hf:clip": ("`CLIPModel` has several inputs (`text_config`, `vision_config`)", EXIT_USAGE),
    "hf:quantised": ("its weights are quantised", EXIT_USAGE),
    "hf:own_code": ("`MineForCausalLM` is no class of transformers; code of a repository is not run", EXIT_USAGE),
    "hf:own_type": ("its `model_type` is `mine`, which is code of its repository", EXIT_USAGE),
    "hf:other_head": ("it may be trained as BertForMaskedLM, ", EXIT_USAGE),
    "hf:teacher": ("`DeiTForImageClassificationWithTeacher` takes no labels, so that it has no loss", EXIT_USAGE),
    "hf:language": ('name one as it does: `default_language="en_XX"`', EXIT_USAGE),
    "timm:deepseek_vit_412m_enc": ("it has no classifier", EXIT_USAGE),
    "hf:bert(layers=3)": ("the configuration of `hf:bert` has no `layers`", EXIT_USAGE),
    "hf:bert(sequence_length=0)": ("is 0, not a whole number above 0", EXIT_USAGE),
    "hf:cache": ("`hf:cache` has no `config.json`", EXIT_USAGE),
    "hf:no such": ("`no such` is neither a directory", EXIT_USAGE),
    "hf:../nowhere": ("`../nowhere` is neither a directory", EXIT_USAGE),
    "hf:für/mich": ("`für/mich` is neither a directory", EXIT_USAGE),
    "hf:nobody/nothing(revision=3)": ("`revision` of `hf:nobody/nothing(revision=3)` is 3, not text", EXIT_USAGE),
    "hf:nobody/nothing": ("is not in the cache, and `HF_HUB_OFFLINE` is set", EXIT_NO_ANSWER),
    "timm:resnet51": ("timm has no model `resnet51`", EXIT_USAGE),
    "timm:resnet18(depth=3)": ("timm cannot build `timm:resnet18(depth=3)`: TypeError", EXIT_USAGE),
    "torchvision:fasterrcnn_resnet50_fpn": ("a detector's step depends on the boxes", EXIT_USAGE),
    "hf:bert(sequence_length=8) at 24": ("`hf:bert(sequence_length=8)` sets `sequence_length` to 8", EXIT_USAGE),
    "lightning:mine.Classifier": ("`training_step` does not take `example_input_array` as a batch", EXIT_USAGE),
    "lightning:mine.ByHand": ("it optimizes by hand", EXIT_USAGE),
    "lightning:mine.Data": ("it is no LightningModule", EXIT_USAGE),
    "lightning:mine.Nothing": ("`mine` has no class `Nothing`", EXIT_USAGE),
    "unreachable": ("is not in the cache and cannot be fetched: ", EXIT_NO_ANSWER),
    "missing": ("`timm:resnet18` needs timm: timm is not installed", EXIT_NO_ANSWER),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of each target in one process that can open no socket."""
    folder = tmp_path_factory.mktemp("hubs")
    (folder / "cache").mkdir()
    (folder / "configurations.json").write_text(json.dumps(CONFIGURATIONS))
    (folder / "mine.py").write_text(MODULES)
    named = [text for text in REFUSED if text not in ("missing", "unreachable")]
    (folder / "targets.json").write_text(json.dumps([*SHAPES, *named]))
    program = Path(__file__).with_name("hub_program.py")
    ended = run_program(sys.executable, [str(program), str(folder)], dict(os.environ), timeout=200)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, dict[str, Any]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("target", SHAPES)
def test_a_name_is_a_target_that_trains(answers: dict[str, dict[str, Any]], target: str) -> None:
    """The batch has the sizes of the model's own configuration, and the loss is a number; no socket is opened."""
    found = answers[target]
    assert "error" not in found, found
    assert found["batch"] == SHAPES[target]
    assert found["finite"]


def test_no_socket_is_opened_offline(answers: dict[str, dict[str, Any]]) -> None:
    """Neither for models of libraries nor for a directory, an id in the cache, or one that is not; else one is."""
    assert answers["sockets"]["opened"] == []
    assert answers["unreachable"]["opened"]


def test_the_choices_are_told_in_the_file(answers: dict[str, dict[str, Any]]) -> None:
    """A head that is missing, a type of weights, a length that is cut and positions of padding each have a line."""
    assert "`BertForMaskedLM`" in answers["hf:headless"]["choices"]["model"]
    assert "since `BertModel` has no loss" in answers["hf:headless"]["choices"]["model"]
    assert answers["hf:llama(sequence_length=16)"]["types"] == ["torch.bfloat16"]
    assert "38 tokens, all positions that the model has" in answers["hf:roberta"]["source"]
    assert answers["hf:t5(target_length=8)"]["model"] == "T5ForConditionalGeneration"
    assert answers["hf:perceiver"]["model"] == "PerceiverForImageClassificationConvProcessing"
    assert '"time_step_limit": [0.0, float("inf")]' in answers["hf:mamba2(sequence_length=16)"]["source"]
    assert answers["lightning:mine.Heir"]["choices"]["batch"] == "of its own `train_dataloader`"
    assert "7 classes" in answers["hf:vit"]["choices"]["labels"]
    call = 'timm.create_model("test_vit", pretrained=False, img_size=image_size)'
    assert call in answers["timm:test_vit(image_size=96)"]["source"]
    for found in (answers[target] for target in SHAPES):
        assert all(name in found["source"] for name in found["choices"])


@pytest.mark.parametrize("target", REFUSED)
def test_what_cannot_be_known_is_refused(answers: dict[str, dict[str, Any]], target: str) -> None:
    """Each refusal says why and what to do, with the exit code of its kind."""
    message, exit_code = REFUSED[target]
    assert message in answers[target]["error"]
    assert answers[target]["exit_code"] == exit_code
    assert answers[target]["hint"]


def test_a_missing_library_names_its_installation(answers: dict[str, dict[str, Any]]) -> None:
    """The error has the pip command."""
    assert "`pip install timm`" in answers["missing"]["hint"]


def test_the_page_shows_the_file_that_is_written(answers: dict[str, dict[str, Any]]) -> None:
    """The documentation's file of `timm:resnet50` is the generated one, whatever the version of timm."""
    page = (ROOT / "docs/commands/init.md").read_text(encoding="utf-8")
    source = re.sub(r"timm \d[\w.]*;", "timm VERSION;", answers["page"]["source"])
    assert source in re.sub(r"timm \d[\w.]*;", "timm VERSION;", page)


@pytest.mark.null_gpu
def test_a_name_has_the_answer_of_the_file_that_init_writes(oomdoctor_here: Run, tmp_path: Path) -> None:
    """`probe` of the name, at another length, equals `probe` of the written file, and tells what was chosen."""
    configuration = {**_TEXT, "model_type": "bert", "architectures": ["BertForTokenClassification"]}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text(json.dumps(configuration))
    written = oomdoctor_here("init", "hf:tiny(num_labels=9)", "-o", "model.py", "--quiet")
    assert (written.returncode, written.stdout) == (0, "")
    options = ("--gpu", "rtx-4090", "--capacity", "64MiB", "--at", "sequence_length=24", "--json", "--quiet")
    named, file = (
        json.loads(oomdoctor_here("probe", target, *options).stdout)["result"]
        for target in ("hf:tiny(num_labels=9)", "model.py")
    )

    assert named["micro_batch"] == file["micro_batch"]
    assert named["micro_batch"]["maximum"] > 0
    assert named["target"] == "hf:tiny(num_labels=9)"
    reasons = {reason["subject"]: reason["text"] for reason in named["reasons"]}
    assert "one of 9 classes a token" in reasons["labels"]
    assert reasons["labels"] in " ".join((tmp_path / "model.py").read_text().split())
