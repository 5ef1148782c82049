"""Models whose tables of remedies are proven, and how each file is edited by hand for each remedy.

An edit is written as somebody who reads PyTorch's documentation would write it; `prescribe_edits.py` has what is alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prescribe_edits import (
    BATCH,
    KEPT_ATTENTION,
    KEPT_PRODUCTS,
    REPLAY,
    Edit,
    adapted,
    common,
    context_of,
    in_a_loop,
    keeping,
    replayed,
    switched,
)

from oomdoctor.examples import gpt2, resnet50

ZOO = Path(__file__).parent / "zoo"


@dataclass(frozen=True, slots=True)
class Model:
    """A file and its edits, where a remedy that is measured and has none leaves its row unproven.

    Attributes:
        source: The file.
        target_batch: Above every maximum, so that memory is what limits.
        edits: What replaces what, by remedy; `a + b` is both remedies together.
        builder: Name of the function that builds the model.
        capacity: Memory of the card; None for all that an RTX 4090 has.
        needs: Distribution that the model is built from; None for torch.
    """

    source: str
    target_batch: int
    edits: dict[str, Edit]
    builder: str = "build_model"
    capacity: str | None = None
    needs: str | None = None


# --- GPT-2 -----------------------------------------------------------------------------------------------------------

_GPT2_CALL = "recompute(block, x, use_reentrant=False) if self.checkpoint else block(x)"
_GPT2_LOSS = "nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())"
_GPT2_BATCH = "tokens, tokens.roll(-1, dims=1)"
_GPT2_FUSED: Edit = (
    ("        return nn.functional.linear(self.norm(x), self.tokens)\n", "        return self.norm(x)\n"),
    (
        f"    return {_GPT2_LOSS}\n",
        (
            "    return nn.functional.linear_cross_entropy(\n        logits.flatten(0, 1), model.tokens, "
            "targets.flatten(), options=nn.LinearCrossEntropyOptions()\n    )\n"
        ),
    ),
)
_GPT2_REPLAYED = replayed(_GPT2_CALL, "block", "x")
_GPT2_BUILT = """GPT2(
        layers=layers,
        width=width,
        heads=heads,
        context=context,
        vocabulary=vocabulary,
        dropout=dropout,
        checkpoint=checkpoint,
    )"""
_FROZEN = """\
    model = {built}
    for block in {blocks}:
        for parameter in block.parameters():
            parameter.requires_grad = False
{rest}    return model
"""
GPT2 = Model(
    Path(gpt2.__file__).read_text(encoding="utf-8"),
    256,
    {
        **common(_GPT2_LOSS, _GPT2_BUILT, _GPT2_BATCH),
        **{
            name: (*edit, ("    logits = model(tokens)\n", ""), ("logits.flatten", "model(tokens).flatten"))
            for name, edit in common(_GPT2_LOSS, _GPT2_BUILT, _GPT2_BATCH).items()
            if name in {"bf16", "offload-activations"}  # the forward is to be inside
        },
        **_GPT2_REPLAYED,
        "lora": adapted(_GPT2_BUILT, "class Attention(nn.Module):"),
        "checkpoint-every-2": (
            ("for block in self.blocks:", "for number, block in enumerate(self.blocks):"),
            (_GPT2_CALL, "recompute(block, x, use_reentrant=False) if number % 2 == 0 else block(x)"),
        ),
        "checkpoint-first-5": (
            ("for block in self.blocks:", "for number, block in enumerate(self.blocks):"),
            (_GPT2_CALL, "recompute(block, x, use_reentrant=False) if number < 5 else block(x)"),
        ),
        "fused-cross-entropy": _GPT2_FUSED,
        "fused-cross-entropy + checkpoint": (*_GPT2_FUSED, *_GPT2_REPLAYED["checkpoint"]),
        "freeze-half": (
            (
                f"    return {_GPT2_BUILT}\n",
                _FROZEN.format(
                    built=_GPT2_BUILT,
                    blocks="model.blocks[:6]",
                    rest="    model.tokens.requires_grad = model.positions.requires_grad = False\n",
                ),
            ),
        ),
    },
)

# --- ResNet-50 -------------------------------------------------------------------------------------------------------

_RESNET_CALL = "nn.functional.relu(self.residual(x) + self.shortcut(x), inplace=True)"
_RESNET_BODY = f"        return {_RESNET_CALL}\n"
_RESNET_SPLIT = "        return {call}\n\n    def block(self, x):\n" + _RESNET_BODY
_RESNET_REPLAYED = {
    name: tuple(
        (old, _RESNET_SPLIT.format(call=new.replace("self.block(x)", "self.block, x")))
        if old == _RESNET_BODY
        else (old, new)
        for old, new in edit
    )
    for name, edit in {
        name: tuple((_RESNET_BODY if old == "CALL" else old, new) for old, new in edit)
        for name, edit in replayed("CALL", "self.block", "x").items()
    }.items()
}
_RESNET_BUILT = """nn.Sequential(
        convolution(3, width, kernel=7, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        stage(width, width, blocks[0], stride=1),
        stage(4 * width, 2 * width, blocks[1], stride=2),
        stage(8 * width, 4 * width, blocks[2], stride=2),
        stage(16 * width, 8 * width, blocks[3], stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32 * width, classes),
    )"""
_CLASSES_LOSS = "nn.functional.cross_entropy(model(images), labels)"
RESNET50 = Model(
    Path(resnet50.__file__).read_text(encoding="utf-8"),
    2048,
    {
        **common(
            _CLASSES_LOSS,
            _RESNET_BUILT,
            "images, torch.randint(classes, (batch_size,))",
            optimizer="torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)",
        ),
        **_RESNET_REPLAYED,
        "checkpoint-every-2": in_a_loop(
            _RESNET_BUILT, "[part for part in model.modules() if isinstance(part, Bottleneck)][::2]"
        ),
        "fused-cross-entropy": (
            (
                f"    return {_CLASSES_LOSS}\n",
                (
                    "    options = nn.LinearCrossEntropyOptions()\n    last = model[-1]\n"
                    "    return nn.functional.linear_cross_entropy(\n        model[:-1](images), last.weight, labels, "
                    "linear_bias=last.bias, options=options\n    )\n"
                ),
            ),
        ),
    },
)

# --- transformers ----------------------------------------------------------------------------------------------------

_LLAMA_BUILT = """LlamaForCausalLM(
        LlamaConfig(
            hidden_size=512,
            intermediate_size=1376,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=32000,
        )
    )"""
_OWN_LOSS = "model(**batch).loss"
_LLAMA_FUSED: Edit = (
    (
        f"    return {_OWN_LOSS}\n",
        (
            '    hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state\n'
            '    labels = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:].contiguous()\n'
            "    return torch.nn.functional.linear_cross_entropy(\n        hidden.flatten(0, 1), model.lm_head.weight, "
            "labels.flatten(), options=torch.nn.LinearCrossEntropyOptions()\n    )\n"
        ),
    ),
)

LLAMA = Model(
    f"""\
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build_model():
    return {_LLAMA_BUILT}


def make_batch(batch_size):
    tokens = torch.randint(5, 32000, (batch_size, 512))
    return {{"input_ids": tokens, "labels": tokens.clone()}}


def training_step(model, batch):
    return {_OWN_LOSS}
""",
    512,
    {
        **common(_OWN_LOSS, _LLAMA_BUILT, '{"input_ids": tokens, "labels": tokens.clone()}'),
        **keeping(_LLAMA_BUILT),
        "checkpoint": switched(_LLAMA_BUILT, ""),
        "checkpoint-every-2": switched(
            _LLAMA_BUILT,
            "    for layer in model.model.layers[1::2]:\n        layer.gradient_checkpointing = False\n",
        ),
        "fused-cross-entropy": _LLAMA_FUSED,
        "fused-cross-entropy + checkpoint": (*_LLAMA_FUSED, *switched(_LLAMA_BUILT, "")),
    },
    capacity="6GiB",
    needs="transformers",
)

_T5_BUILT = """T5ForConditionalGeneration(
        T5Config(
            d_model=512, d_kv=64, d_ff=1024, num_layers=4, num_heads=8, vocab_size=32128, decoder_start_token_id=0
        )
    )"""
_T5_BATCH = '{"input_ids": tokens, "labels": torch.randint(5, 32000, (batch_size, 256))}'
_T5_FUSED: Edit = (
    (
        f"    return {_OWN_LOSS}\n",
        (
            '    read = model.encoder(input_ids=batch["input_ids"]).last_hidden_state\n'
            '    shifted = model._shift_right(batch["labels"])\n'
            # As the model's own forward does, what the decoder returned is held while the loss is computed.
            "    decoded = model.decoder(input_ids=shifted, encoder_hidden_states=read)\n"
            "    hidden = decoded.last_hidden_state\n"
            "    if model.config.scale_decoder_outputs:\n        hidden = hidden * model.model_dim**-0.5\n"
            "    return torch.nn.functional.linear_cross_entropy(\n        hidden.flatten(0, 1), model.lm_head.weight, "
            'batch["labels"].flatten(), options=torch.nn.LinearCrossEntropyOptions()\n    )\n'
        ),
    ),
)
T5 = Model(
    f"""\
import torch
from transformers import T5Config, T5ForConditionalGeneration


def build_model():
    return {_T5_BUILT}


def make_batch(batch_size):
    tokens = torch.randint(5, 32000, (batch_size, 256))
    return {_T5_BATCH}


def training_step(model, batch):
    return {_OWN_LOSS}
""",
    512,
    {
        **common(_OWN_LOSS, _T5_BUILT, _T5_BATCH),
        **keeping(_T5_BUILT),
        "checkpoint": switched(_T5_BUILT, ""),
        "checkpoint-every-2": switched(
            _T5_BUILT,
            "    for layer in [*model.encoder.block, *model.decoder.block][1::2]:\n"
            "        layer.gradient_checkpointing = False\n",
        ),
        "fused-cross-entropy": _T5_FUSED,
        "fused-cross-entropy + checkpoint": (*_T5_FUSED, *switched(_T5_BUILT, "")),
    },
    capacity="4GiB",
    needs="transformers",
)

# --- timm and diffusion ----------------------------------------------------------------------------------------------

_VIT_BUILT = 'timm.create_model("vit_small_patch16_224", depth=6)'
_VIT_BATCH = "torch.randn(3, 224, 224).repeat(batch_size, 1, 1, 1), torch.randint(1000, (batch_size,))"
VIT = Model(
    f"""\
import torch
import timm


def build_model():
    return {_VIT_BUILT}


def make_batch(batch_size):
    return {_VIT_BATCH}


def training_step(model, batch):
    images, labels = batch
    return torch.{_CLASSES_LOSS}
""",
    1024,
    {
        **common(f"torch.{_CLASSES_LOSS}", _VIT_BUILT, _VIT_BATCH),
        "checkpoint": (
            (
                f"    return {_VIT_BUILT}\n",
                f"    model = {_VIT_BUILT}\n    model.set_grad_checkpointing()\n    return model\n",
            ),
        ),
        "checkpoint-every-2": in_a_loop(_VIT_BUILT, "model.blocks[::2]"),
        **{
            f"checkpoint-keep-{kind}": (
                in_a_loop(_VIT_BUILT, "model.blocks")[0],
                (BATCH, REPLAY.format(options=", context_fn=context") + context_of(kept) + BATCH),
            )
            for kind, kept in (("attention", KEPT_ATTENTION), ("matmuls", KEPT_PRODUCTS + KEPT_ATTENTION))
        },
        "fused-cross-entropy": (
            (
                f"    return torch.{_CLASSES_LOSS}\n",
                (
                    "    hidden = model.forward_head(model.forward_features(images), pre_logits=True)\n"
                    "    return torch.nn.functional.linear_cross_entropy(\n        hidden, model.head.weight, labels, "
                    "linear_bias=model.head.bias,\n        options=torch.nn.LinearCrossEntropyOptions()\n    )\n"
                ),
            ),
        ),
    },
    capacity="4GiB",
    needs="timm",
)

_UNET_BUILT = "Denoiser(width, checkpoint=checkpoint)"
_UNET_BATCH = "latents, torch.randint(STEPS, (batch_size,)), torch.randn(TOKENS, TEXT).repeat(batch_size, 1, 1)"


def _unet_replayed() -> dict[str, Edit]:
    """Return the edits that checkpoint the residual blocks, which are called in two places."""
    both, middle = (replayed(f"{block}(x, time)", block, "x, time") for block in ("residual", "self.middle"))
    return {
        name: (*edit, next(pair for pair in middle[name] if pair[0] == "self.middle(x, time)"))
        for name, edit in both.items()
    }


UNET = Model(
    (ZOO / "diffusion.py").read_text(encoding="utf-8"),
    512,
    {
        **common("nn.functional.mse_loss(model(noised, times, text).float(), noise)", _UNET_BUILT, _UNET_BATCH),
        **_unet_replayed(),
        "checkpoint-every-2": in_a_loop(
            _UNET_BUILT, "[part for part in model.modules() if isinstance(part, Residual)][::2]"
        ),
    },
    builder="build_unet(width=64)",
    capacity="4GiB",
)

MODELS = {"gpt2": GPT2, "resnet50": RESNET50, "llama": LLAMA, "t5": T5, "vit": VIT, "unet": UNET}
