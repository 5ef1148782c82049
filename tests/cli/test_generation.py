"""`--mode generate`: the largest batch that a decoder generates for, and what its cache and logits take."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Run

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

PROMPT, NEW, LAYERS, WIDTH, WORDS = 40, 12, 2, 64, 1000
MODEL = f"""\
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build_model(positions=64):
    size = dict(n_layer={LAYERS}, n_embd={WIDTH}, n_head=2, vocab_size={WORDS}, n_positions=positions)
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=None, pad_token_id=1))


def make_batch(batch_size):
    return {{"input_ids": torch.zeros(batch_size, 16, dtype=torch.long)}}
"""
BY_HAND = f"""\
import sys
import torch
from model import build_model

model = build_model().cuda().eval()
for size in map(int, sys.argv[1:]):
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    try:
        for _ in range(2):
            prompts = torch.zeros(size, {PROMPT}, dtype=torch.long, device="cuda")
            new = dict(max_new_tokens={NEW}, min_new_tokens={NEW})
            made = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, **new)
            assert made.shape == (size, {PROMPT + NEW})
        ended = "fits"
    except torch.OutOfMemoryError:
        ended = "runs out"
    with open("ended.txt", "a") as file:
        print(size, ended, file=file)
"""
CARD = ("--gpu", "t4", "--capacity", "64MiB")
TOKENS = ("--mode", "generate", "--prompt", str(PROMPT), "--new-tokens", str(NEW))


def _generated(oomdoctor_here: Run, folder: Path, *options: str) -> Any:
    (folder / "model.py").write_text(MODEL)
    ended = oomdoctor_here("probe", "model.py", *TOKENS, *CARD, "--json", *options)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["result"]


@pytest.mark.slow
def test_the_maximum_is_that_of_generate(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The size of the answer is generated for by `generate()` of transformers, and one more runs out."""
    found = _generated(oomdoctor_here, tmp_path)
    size = found["micro_batch"]["maximum"]
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    command = (sys.executable, "by_hand.py", str(size), str(size + 1))
    ran = oomdoctor_here("run", *CARD, "--", *command, PYTHONDONTWRITEBYTECODE="1")

    assert size > 1
    assert found["micro_batch"]["limited_by"] == "memory"
    assert (tmp_path / "ended.txt").read_text() == f"{size} fits\n{size + 1} runs out\n", ran.stderr


@pytest.mark.parametrize(("cache", "tokens"), [("dynamic", PROMPT + NEW - 1), ("static", PROMPT + NEW)])
def test_cache_and_logits_are_told_apart(tmp_path: Path, oomdoctor_here: Run, cache: str, tokens: int) -> None:
    """Keys and values of each layer and token; of the last new token only where there is room for all from the start.

    The prompts' logits are those of one token, and what those of all tokens would take is told too.
    """
    found = _generated(oomdoctor_here, tmp_path, "--cache", cache, "--capacity", "1GiB", "--headroom", "20%")
    told, size = found["generation"], found["micro_batch"]["maximum"]

    assert found["variant"]["generation"] == {"prompt_tokens": PROMPT, "new_tokens": NEW, "cache": cache}
    assert told["cache_bytes"] == LAYERS * 2 * size * tokens * WIDTH * 4
    assert told["logits_bytes"] == size * WORDS * 4
    assert told["logits_argument"] == "logits_to_keep"
    assert not told["runs_without"]
    assert {phase["phase"] for phase in found["phases"]} == {"load", "prefill", "decode"}


def test_all_logits_are_weighed_where_they_fit(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Where the cache is what limits, a loop without `logits_to_keep` runs as well, and its logits have a number."""
    source = MODEL.replace(f"vocab_size={WORDS}", "vocab_size=8")
    (tmp_path / "small.py").write_text(source)
    ended = oomdoctor_here("probe", "small.py", *TOKENS, *CARD, "--output", "found.json")
    told = json.loads((tmp_path / "found.json").read_text())["result"]["generation"]
    shown = " ".join(oomdoctor_here("report", "found.json").stdout.split())

    assert ended.returncode == 0, ended.stderr
    assert told["runs_without"]
    assert told["all_logits_bytes"] == told["micro_batch"] * PROMPT * 8 * 4
    assert "of the last token alone, by `logits_to_keep=1` as `generate()` does; without it they are" in shown


def test_every_format_says_what_was_generated(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The headline names the batch; the tokens are part of the question, and nothing speaks of accumulation."""
    (tmp_path / "model.py").write_text(MODEL)
    oomdoctor_here("probe", "model.py", *TOKENS, *CARD, "--output", "found.json")
    for form in ("text", "markdown", "html", "github", "junit"):
        shown = oomdoctor_here("report", "found.json", "--format", form).stdout
        assert re.search(r"[Gg]enerating a batch of \d+ fits", shown), form
        assert "accumulation_steps" not in shown
        assert "--target-batch" not in shown


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("model.py", "--mode", "generate", "--prompt", "8"), 2, "`--mode generate` needs `--new-tokens`"),
        (("model.py", *TOKENS, "--over", "length=8,16"), 2, "`length` is no size of `--mode generate`"),
        (("model.py", *TOKENS, "--over", "prompt=8,16"), 2, "`prompt` is asked about twice"),
        (
            ("model.py", *TOKENS[:2], *TOKENS[4:], "--over", "prompt=8", "--buckets", "json"),
            2,
            "`--buckets json` trains or evaluates on all buckets in turn, and generates nothing",
        ),
        (("model.py", "--prompt", "8"), 2, "`--prompt` is for `--mode generate`"),
        (("model.py", *TOKENS, "--target-batch", "8"), 2, "`--target-batch` is for training, and `--mode` asks for"),
        (
            ("model.py", "--mode", "generate", "--prompt", "60", "--new-tokens", "8"),
            2,
            "takes 64 tokens, and 60 of the",
        ),
        (("model.py", "--mode", "generate", "--prompt", "0", "--new-tokens", "8"), 2, "--prompt"),
        (("vit_b16", *TOKENS, "--capacity", "4GiB"), 2, "cannot be asked for tokens"),
        ((*TOKENS, "--", "python", "train.py", "{micro_batch}"), 2, "`--mode` is for files, and a command is probed"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    tmp_path: Path, oomdoctor_here: Run, arguments: tuple[str, ...], code: int, error: str
) -> None:
    """Each error says what was wrong: the option, the number of tokens, or the model."""
    (tmp_path / "model.py").write_text(MODEL)
    ended = oomdoctor_here("probe", *CARD, *arguments)

    assert ended.returncode == code, ended.stderr
    assert error in " ".join(ended.stderr.split())


def test_tokens_are_varied_and_searched_as_other_sizes(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A cell is a probe with so many tokens; the longest prompt fits, and the model's own is a limit."""
    new = ("--mode", "generate", "--new-tokens", str(NEW))
    alone = _generated(oomdoctor_here, tmp_path)["micro_batch"]
    varied = oomdoctor_here("probe", "model.py", *new, *CARD, "--over", f"prompt=8,{PROMPT},60", "--json")
    cells = json.loads(varied.stdout)["result"]["cells"]
    size = str(alone["maximum"])
    longest = oomdoctor_here("probe", "model.py", *new, *CARD, "--largest", "prompt", "--micro-batch", size, "--json")
    room = (*new, *CARD[:2], "--largest", "prompt", "--micro-batch", "2")
    (last,) = json.loads(oomdoctor_here("probe", "model.py", *room, "--json").stdout)["result"]["cells"]
    text = oomdoctor_here("probe", "model.py", *room).stdout

    assert (cells[1]["maximum"], cells[1]["recommended"]) == (alone["maximum"], alone["recommended"])
    assert cells[0]["maximum"] > cells[1]["maximum"]
    assert (varied.returncode, "takes 64 tokens" in cells[2]["problem"]) == (2, True)
    (found,) = json.loads(longest.stdout)["result"]["cells"]
    assert PROMPT <= found["maximum"] < 64 - NEW
    longer = ("--prompt", str(found["maximum"] + 1), *new, *CARD, "--json")
    assert json.loads(oomdoctor_here("probe", "model.py", *longer).stdout)["result"]["micro_batch"]["maximum"] < int(
        size
    )
    assert (last["maximum"], last["limited_by"]) == (64 - NEW, "limit")
    assert f"generation, {NEW} new tokens, dynamic cache" in text


def test_a_check_asks_what_the_probe_asks(tmp_path: Path, oomdoctor_here: Run) -> None:
    """An entry's figures are those of the probe with the same tokens, and its baseline says of what they are."""
    found = _generated(oomdoctor_here, tmp_path)
    (tmp_path / "oomdoctor.toml").write_text(
        '[[check]]\nname = "tokens"\ntarget = "model.py"\ngpu = "t4"\ncapacity = "64MiB"\nbaseline = true\n'
        f'mode = "generate"\nprompt = {PROMPT}\nnew-tokens = {NEW}\n'
    )
    ended = oomdoctor_here("check", "--update", "--json")
    assert ended.returncode == 0, ended.stderr
    (entry,) = json.loads(ended.stdout)["result"]["entries"]

    assert entry["probe"]["micro_batch"] == found["micro_batch"]
    assert f"generate {PROMPT} + {NEW} tokens, dynamic cache" in (tmp_path / "oomdoctor-baseline.json").read_text()


GENERATES = """

@torch.no_grad()
def evaluation_step(model, batch):
    mask = torch.ones_like(batch["input_ids"])
    made = model.generate(batch["input_ids"], attention_mask=mask, eos_token_id=0, OPTIONS)
    assert ENDS_EARLY or made.shape[1] == 28
    return made
"""


@pytest.mark.parametrize(
    ("options", "ends_early"),
    [
        ("max_new_tokens=12", False),
        ("max_new_tokens=12, do_sample=True, top_k=5", False),
        ("max_length=28", False),
        ("max_new_tokens=12, num_beams=3", True),
    ],
)
def test_generate_in_the_users_own_code_ends_and_says_what_it_could_not_know(
    tmp_path: Path, oomdoctor_here: Run, options: str, ends_early: bool
) -> None:
    """Loops run to their full length, and one with beams, which values end, is named with what to do instead."""
    (tmp_path / "model.py").write_text(
        MODEL + GENERATES.replace("OPTIONS", options).replace("ENDS_EARLY", str(ends_early))
    )
    ended = oomdoctor_here("probe", "model.py", "--mode", "eval", *CARD, "--json")
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)["result"]
    told = [text for text in result["warnings"] if "with several beams ended after its first token" in text]

    assert bool(told) is ends_early
    assert all(re.search(r"first token at model\.py:\d+", text) for text in told)
    assert any("read data back from the GPU" in text for text in result["warnings"])


def test_a_table_of_cards_generates_as_the_probe_does(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A card's row is the probe's answer for it, and the table says how many tokens."""
    (tmp_path / "model.py").write_text(MODEL)
    shown = oomdoctor_here("gpus", "--fit", "model.py", *TOKENS, "--gpu", "t4", "-q")
    probed = oomdoctor_here("probe", "model.py", *TOKENS, "--gpu", "t4", "--engine", "trace", "--json")
    assert probed.returncode == 0, probed.stderr
    size = json.loads(probed.stdout)["result"]["micro_batch"]["maximum"]

    assert re.search(rf"^ *t4 +\S+ GiB +{size} ", shown.stdout, re.MULTILINE), shown.stdout
    assert f"generation, {PROMPT} + {NEW} tokens, dynamic cache; 1 card" in shown.stdout
