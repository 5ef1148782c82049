"""Verdicts on fifty small models, and what their remedies make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody names it
from small_models import CASES, CLASS_WEIGHTS, RIGHT, WEIGHTED, Case, around, classify, convolution, images

from oomdoctor import accumulate, plan_accumulation
from oomdoctor.results.verify import VerifyResult
from oomdoctor.verification.expected_randomness import ExpectedRandomness
from oomdoctor.verification.gradients import Laboratory, distance
from oomdoctor.verification.judgement import TOLERANCES, Judge, partitions
from oomdoctor.verification.remedies import REMEDIES

SAMPLES, PARTS = 8, 4
HERE = [Path(__file__).parent]


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def laboratory(case: Case) -> Laboratory:
    """The case's model and batch, always the same."""
    torch.manual_seed(0)
    return Laboratory(case.build().train(), case.step, case.batch(SAMPLES), SAMPLES)


def judge(case: Case) -> VerifyResult:
    """The case's verdict."""
    return Judge(laboratory(case), PARTS, TOLERANCES["fp64"], HERE).judge("model.py", "fp64")


@pytest.mark.parametrize("name", CASES)
def test_each_model_gets_its_verdict_and_its_cause(name: str) -> None:
    """A model gets its own verdict, its cause and the module, line or count that has to be named."""
    case = CASES[name]
    result = judge(case)
    assert result.verdict == case.verdict
    assert {cause.id for cause in result.causes} >= ({case.cause} if case.cause else set())
    assert bool(result.causes) == bool(case.cause)
    told = [cause.evidence + str(cause.location) for cause in result.causes]
    told += [remedy.change + remedy.code for remedy in result.remedies] + list(result.notes)
    assert not case.names or any(case.names in text for text in told)
    assert case.verdict == "different" or (result.weighted_error or 0.0) <= result.tolerance


def accumulated(case: Case, **options: Any) -> float:
    """Error of the gradient that a loop over `accumulate` gets."""
    lab = laboratory(case)
    whole = lab.run([lab.batch], [1.0])
    lab.restore()
    steps = accumulate(lab.batch, plan_accumulation(SAMPLES, 3), **options)
    for part, _ in steps:
        steps.backward(lab.step(lab.model, part))
    return distance([parameter.grad for parameter in lab.parameters if parameter.grad is not None], whole.gradients)


def printed_options(result: VerifyResult) -> dict[str, Any]:
    """What the printed call of `accumulate` gives it."""
    code = result.remedies[-1].code
    call = code[code.index("accumulate(") :].splitlines()[0].rstrip(":")
    names = {"dict": dict, "class_weights": CLASS_WEIGHTS}
    return eval(call.replace("accumulate(batch, plan, ", "dict("), names)  # type: ignore[no-any-return]  # noqa: S307 - our own text


@pytest.mark.parametrize("name", [name for name in WEIGHTED if WEIGHTED[name].names])
def test_the_code_of_a_weighting_makes_accumulating_equal(name: str) -> None:
    """Run as it is printed, the remedy's call of `accumulate` gives the whole batch's gradient, unequal parts too."""
    case = WEIGHTED[name]
    assert accumulated(case, **printed_options(judge(case))) < TOLERANCES["fp64"]


def test_the_remedy_for_batch_norm_makes_it_equal() -> None:
    """A model with GroupNorm in place of BatchNorm2d, as the remedy says, is equal."""
    code = judge(CASES["batch norm 2d"]).remedies[0].code
    assert "in place of BatchNorm2d(8)" in code
    norm = eval(code.splitlines()[0], {"torch": torch})  # noqa: S307 - our own text
    assert judge(Case(lambda: convolution(norm), images, CASES["batch norm 2d"].step, "equal")).verdict == "equal"


class Frozen(torch.nn.Sequential):
    """Layers whose second one is a batch norm that the remedy's code freezes after each `train()`."""

    code = REMEDIES["batch_norm"].code.splitlines()[1]

    def train(self, mode: bool = True) -> Frozen:  # noqa: FBT002 - torch's own
        """Do as the code says."""
        super().train(mode)
        exec(self.code, {"batch_norm": self[1]})  # noqa: S102 - our own text
        return self


def frozen() -> Frozen:
    """The layers of the batch norm's case."""
    return Frozen(*CASES["batch norm"].build())


def test_frozen_statistics_make_batch_norm_equal() -> None:
    """With statistics frozen as the remedy says, the model is equal, and padding is all that is left to weight."""
    assert judge(Case(frozen, CASES["batch norm"].batch, classify, "equal")).verdict == "equal"
    padded = Case(frozen, CASES["batch norm and padding"].batch, classify, "equal_if_weighted")
    result = judge(padded)
    assert result.verdict == "equal_if_weighted"
    assert accumulated(padded, **printed_options(result)) < TOLERANCES["fp64"]


def test_the_loss_of_a_causal_language_model_of_transformers_is_weighted() -> None:
    """Llama's own loss over padded labels is a mean over tokens: the printed count makes accumulating equal."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=40, **sizes)

    def batch(samples: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(1, 40, (samples, 6))
        is_padding = torch.arange(6) > torch.randint(2, 6, (samples, 1))
        return {"input_ids": tokens, "labels": tokens.masked_fill(is_padding, -100)}

    llama = Case(lambda: transformers.LlamaForCausalLM(config), batch, lambda model, part: model(**part).loss, "")
    result = judge(llama)
    assert result.verdict == "equal_if_weighted"
    assert accumulated(llama, **printed_options(result)) < TOLERANCES["fp64"]


def views(model: Any, part: Any) -> torch.Tensor:
    """Embeddings of both views of each sample."""
    return torch.stack([model(part[0]), model(part[0] + 0.1)], dim=1)


def contrast(model: Any, batch: Any, outputs: torch.Tensor) -> torch.Tensor:
    """The loss of `small_models.contrast`, from the embeddings."""
    a, b = F.normalize(outputs[:, 0], dim=1), F.normalize(outputs[:, 1], dim=1)
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


def logits_and_shares(model: Any, part: Any) -> torch.Tensor:
    """What the loss of balanced experts reads: the logits and the gate's shares."""
    return torch.cat([model(part[0]), model.gate(part[0]).softmax(-1)], dim=1)


def balance(model: Any, batch: Any, outputs: torch.Tensor) -> torch.Tensor:
    """The loss of `small_models.balanced`, from the outputs."""
    logits, share = outputs[:, :-4], outputs[:, -4:]
    chosen = F.one_hot(share.argmax(-1), 4).to(share)
    return F.cross_entropy(logits, batch[1]) + 0.01 * 4 * (chosen.mean(0) * share.mean(0)).sum()


@pytest.mark.parametrize(
    ("name", "outputs", "loss"),
    [("contrastive", views, contrast), ("balanced experts", logits_and_shares, balance)],
)
def test_gradient_caching_as_it_is_printed_makes_it_equal(
    name: str, outputs: Callable[..., torch.Tensor], loss: Callable[..., torch.Tensor]
) -> None:
    """A contrastive loss and experts that are balanced get the whole batch's gradient by the remedy's own code."""
    case = CASES[name]
    code = judge(case).remedies[0].code
    lab = laboratory(case)
    whole = lab.run([lab.batch], [1.0])
    lab.restore()
    names = {"torch": torch, "accumulate": accumulate, "batch": lab.batch, "plan": plan_accumulation(SAMPLES, 3)}
    of_model = {"model_outputs": partial(outputs, lab.model), "loss_of": partial(loss, lab.model, lab.batch)}
    exec(code, {**names, **of_model})  # noqa: S102 - our own text
    found = [parameter.grad for parameter in lab.parameters if parameter.grad is not None]
    assert distance(found, whole.gradients) < TOLERANCES["fp64"]


class OwnDeviation(torch.nn.Module):
    """The deviation of each sample's features in place of the batch's, by the expression of the remedy."""

    def __init__(self, mean: str) -> None:
        super().__init__()
        self._mean = mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return each feature with its sample's deviation."""
        return x + (x - eval(self._mean, {"x": x})).square().mean(1, keepdim=True).sqrt()  # noqa: S307 - our own text


@pytest.mark.parametrize("name", ["own norm", "minibatch deviation"])
def test_the_remedy_for_a_module_makes_it_equal(name: str) -> None:
    """With statistics of each sample's own, as the remedy has them, a module that mixed samples is equal."""
    code = judge(CASES[name]).remedies[0].code
    assert judge(Case(lambda: around(OwnDeviation(code)), CASES[name].batch, classify, "equal")).verdict == "equal"


@pytest.mark.parametrize("name", ["plain", "group norm", "time-major"])
def test_a_verdict_of_equal_holds_for_a_loop(name: str) -> None:
    """Where the verdict is equal, a loop over `accumulate` gets the whole batch's gradient without more."""
    assert accumulated(RIGHT[name]) < TOLERANCES["fp64"]


@pytest.mark.parametrize("name", ["dropout", "drop path", "noise on inputs"])
def test_a_verdict_of_random_only_holds_for_a_loop(name: str) -> None:
    """But for its draws, which are their expected values here, a loop gets the whole batch's gradient without more."""
    with ExpectedRandomness():
        assert accumulated(CASES[name]) < TOLERANCES["fp64"]


def test_the_state_is_put_back() -> None:
    """After a judgement parameters, buffers and attributes are what they were before."""
    lab = laboratory(CASES["queue"])
    before = {name: value.clone() for name, value in lab.model.state_dict().items()}
    Judge(lab, PARTS, TOLERANCES["fp64"], HERE).judge("model.py", "fp64")
    lab.restore()
    assert all(torch.equal(value, before[name]) for name, value in lab.model.state_dict().items())
    assert lab.model.kept == []


def test_parts_are_equal_and_unequal() -> None:
    """Eight samples in four parts are 2+2+2+2 and 3+3+2; two parts are 4+4 and 5+3."""
    assert partitions(8, 4) == ((2, 2, 2, 2), (3, 3, 2))
    assert partitions(8, 2) == ((4, 4), (5, 3))
    for samples, parts in ((6, 3), (12, 4), (16, 8), (4, 2)):
        assert all(sum(sizes) == samples for sizes in partitions(samples, parts))
