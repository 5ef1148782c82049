"""Generate targets of names and take a step of each, where no socket can be opened; prints what came of each as JSON.

Usage: hub_program.py FOLDER, with `configurations.json` in it: type, keywords and architecture by name.
"""

import contextlib
import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = str(Path(sys.argv[1]) / "cache")


opened = []


def closed(*address: object, **_: object) -> None:
    """Note and refuse what a connection begins with."""
    opened.append(str(address))
    raise OSError("no network")


socket.socket.connect = socket.getaddrinfo = socket.create_connection = closed

import huggingface_hub  # noqa: E402
import torch  # noqa: E402 - no socket is opened from here on

from oomdoctor.errors import OomdoctorError  # noqa: E402
from oomdoctor.target.contract import build, make_one_batch, take_loss  # noqa: E402
from oomdoctor.target.hubs import generate  # noqa: E402
from oomdoctor.target.importing import load_target  # noqa: E402
from oomdoctor.target.reference import parse_reference  # noqa: E402
from oomdoctor.target.sizes import with_sizes  # noqa: E402

FOLDER = Path(sys.argv[1])


def write_configurations() -> None:
    """Write each `config.json` as `save_pretrained` does."""
    from transformers import AutoConfig

    for name, (kind, keywords, architecture) in json.loads((FOLDER / "configurations.json").read_text()).items():
        own = keywords.pop("_written", {})
        AutoConfig.for_model(kind, architectures=[architecture] * bool(architecture), **keywords).save_pretrained(
            FOLDER / name
        )
        path = FOLDER / name / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    cached = FOLDER / "cache/hub/models--somebody--bert"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("a" * 40)
    shutil.copytree(FOLDER / "bert", cached / "snapshots" / ("a" * 40))


def answer(text: str) -> dict[str, object]:
    """The generated file and what one step on it gives, or the error."""
    text, _, length = text.partition(" at ")
    try:
        reference = parse_reference(text, directory=FOLDER)
        generated = generate(reference)
        target = with_sizes(load_target(reference), {"sequence_length": int(length)} if length else {})
        model, batch = build(target), make_one_batch(target, 2)
        loss = take_loss(target, target.training_step(model, batch))
        loss.backward()
    except OomdoctorError as error:
        return {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}
    parts = batch if isinstance(batch, tuple | list) else [batch]
    tensors = batch.items() if isinstance(batch, dict) else enumerate(parts)
    return {
        "source": generated.source,
        "choices": dict(generated.choices),
        "batch": {name: list(tensor.shape) for name, tensor in tensors},
        "finite": bool(torch.isfinite(loss)),
        "model": type(model).__name__,
        "types": sorted({str(one.dtype) for one in model.parameters()}),
    }


with contextlib.redirect_stdout(sys.stderr):
    write_configurations()
    answers = {text: answer(text) for text in json.loads((FOLDER / "targets.json").read_text())}
    answers["sockets"] = {"opened": list(opened)}
    huggingface_hub.constants.HF_HUB_OFFLINE = False
    time.sleep = lambda _: None  # between the attempts to connect
    answers["unreachable"] = {**answer("hf:nobody/nothing"), "opened": list(opened)}
    answers["page"] = {"source": generate(parse_reference("timm:resnet50", directory=FOLDER)).source}
    sys.modules["timm"] = None  # as where it is not installed
    answers["missing"] = answer("timm:resnet18")
print(json.dumps(answers))
