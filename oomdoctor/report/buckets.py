"""The lines that a sampler of buckets is configured with, for the tool that reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from oomdoctor.report.plain_text import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import Buckets
    from oomdoctor.results.variant import Mode


def lines(buckets: Buckets) -> list[str]:
    """Return the lines to paste, shortest sizes first.

    For NeMo, settings of a data set as Hydra and OmegaConf read them; for lhotse, Python; else one line of JSON.
    """
    rows = sorted(buckets.rows, key=lambda bucket: tuple(axis.size for axis in bucket.sizes))
    bounds = [[axis.size for axis in bucket.sizes] for bucket in rows]
    samples = [bucket.micro_batch for bucket in rows]
    bins = [bound[0] for bound in bounds] if all(len(bound) == 1 for bound in bounds) else bounds
    match buckets.form:
        case "nemo":
            return [f"bucket_duration_bins={_compact(bins)}", f"bucket_batch_size={_compact(samples)}"]
        case "lhotse":
            return _lhotse(bins, samples)
        case "json":
            named = [{axis.name: axis.size for axis in bucket.sizes} for bucket in rows]
            return [json.dumps([{**sizes, "micro_batch": size} for sizes, size in zip(named, samples, strict=True)])]


def _compact(values: object) -> str:
    return json.dumps(values, separators=(",", ":"))


def _lhotse(bins: list[int] | list[list[int]], samples: list[int]) -> list[str]:
    return [
        "from lhotse.dataset import DynamicBucketingSampler",
        "from lhotse.dataset.sampling.dynamic_bucketing import FixedBucketBatchSizeConstraint",
        "",
        f"constraint = FixedBucketBatchSizeConstraint(max_seq_len_buckets={bins}, batch_sizes={samples})",
        f"sampler = DynamicBucketingSampler(cuts, constraint=constraint, duration_bins={bins[:-1]}, shuffle=True)",
    ]


def table(buckets: Buckets, most: int) -> tuple[list[str], list[list[str]]]:
    """Return the headings and at most so many rows of a table: the sizes of each bucket and its micro-batch."""
    headings = [*(axis.name for axis in buckets.rows[0].sizes), "micro-batch"] if buckets.rows else []
    rows = [[*(str(axis.size) for axis in row.sizes), str(row.micro_batch)] for row in buckets.rows[:most]]
    return headings, rows


def turns(buckets: Buckets) -> str:
    """Return whether one process trains on all in turn, without a full stop."""
    these = f"one process trains on {count(len(buckets.rows), 'bucket')} in turn"
    if buckets.percent == 100:  # noqa: PLR2004 - the whole
        return these
    if buckets.percent == 0:
        return f"no {these.removeprefix('one ')}, not even with a sample of each: {buckets.ran_out}"
    return f"{these} with at most {buckets.percent} % of their samples: with more it runs out {buckets.ran_out}"


def sentences(buckets: Buckets, mode: Mode) -> Iterator[str]:
    """Yield what was proven of the buckets."""
    done = "evaluated" if mode == "eval" else "trained on"
    together = f"one process {done} every bucket, largest first and then shuffled"
    if buckets.percent == 100:  # noqa: PLR2004 - the whole
        yield f"{together}, in {count(buckets.trials, 'trial')}: each has the size that is recommended for it alone"
    else:
        yield (
            f"{together}, in {count(buckets.trials, 'trial')}: it ran out with the sizes that are recommended for each "
            f"alone, so each has {buckets.percent} % of them"
        )
    if buckets.cache_returns:
        times = "once" if buckets.cache_returns == 1 else f"{buckets.cache_returns} times"
        yield (
            f"PyTorch gave back its cache {times} on the way, since blocks of one size did not serve another; "
            "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` lets them"
        )
    names = list(dict.fromkeys(axis.name for bucket in buckets.rows for axis in bucket.sizes))
    if buckets.token_budget is not None:
        yield (
            f"a sampler with a budget: {buckets.token_budget:,} is the most samples x {' x '.join(names)} in a "
            "micro-batch at which every size fits"
        )
    elif buckets.without_budget is not None:
        yield f"no budget of samples x {' x '.join(names)} is told: {buckets.without_budget}"
    if buckets.form != "json":
        yield f"the bounds are in units of {' and '.join(f'`{name}`' for name in names)}"
