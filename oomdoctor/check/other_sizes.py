"""The keys of an entry about another size than the micro-batch: the size that is searched, and buckets of sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Final

from oomdoctor.axes import read_sizes
from oomdoctor.errors import UsageError
from oomdoctor.request import as_key, build_searched
from oomdoctor.results import Axis, Bucket
from oomdoctor.units import LARGEST_MICRO_BATCH, LARGEST_NUMBER, positive_number

if TYPE_CHECKING:
    from pathlib import Path

    from oomdoctor.config.check import SettledEntry
    from oomdoctor.config.schema import CheckEntry
    from oomdoctor.results import SearchedSize

_ABOUT_MICRO_BATCHES: Final = (
    "min_micro_batch",
    "max_accumulation_steps",
    "max_memory",
    "baseline",
    "fastest",
    "min_samples_per_second",
)
NOT_WITH_LARGEST: Final = (*_ABOUT_MICRO_BATCHES, "buckets", "bucket_file")
"""Keys that are refused beside `largest`."""

NOT_WITH_BUCKETS: Final = (
    *(*_ABOUT_MICRO_BATCHES, "micro_batch", "over", "largest", "multiple_of", "up_to", "at_least"),
    *("with_eval", "eval_batch", "prompt", "new_tokens", "cache"),
)
"""Keys that are refused beside `buckets` and `bucket-file`."""


_BUCKETS: Final = "write each as `{ sequence_length = 512, micro-batch = 32 }`"


def searched_size(settled: SettledEntry, values: CheckEntry) -> SearchedSize | None:
    """Return the size that is searched in place of the micro-batch; None where none is.

    Raises:
        UsageError: What is said of it contradicts itself, or is said of none.
    """
    key = "largest" if values.largest is not None else "multiple-of" if values.multiple_of is not None else "up-to"
    try:
        searched = build_searched(
            values.largest,
            micro_batch=None if values.largest is None else values.micro_batch,
            multiple_of=values.multiple_of,
            up_to=values.up_to,
            spelled=as_key,
        )
    except UsageError as error:
        raise settled.refusal(key, f"is wrong: {error.message}", error.hint) from None
    least = values.at_least
    if least is not None and searched is None:
        hint = 'say of which size, as in `largest = "sequence_length"`, or write `min-micro-batch`'
        raise settled.refusal("at-least", "is for `largest`, which is missing", hint)
    if searched is not None and searched.name in {**(values.at or {}), **(values.over or {})}:
        problem = f"searches `{searched.name}`, and `at` or `over` gives it"
        raise settled.refusal("largest", problem, "drop one of the two")
    if least is not None and least < 1:
        raise settled.refusal("at-least", f"is {least}, not 1 or more")
    if least is not None and values.up_to is not None and least > values.up_to:
        raise settled.refusal("at-least", f"is {least}, and nothing above `up-to = {values.up_to}` is tried")
    return searched


def bucket_rows(settled: SettledEntry, values: CheckEntry, folder: Path) -> tuple[Bucket, ...]:
    """Return the buckets that an entry names; none where it names none.

    Raises:
        UsageError: They are wrong, or their file cannot be read.
    """
    if values.buckets is not None and values.bucket_file is not None:
        raise settled.refusal("bucket-file", "has buckets, and `buckets` as well", "keep one of the two")
    key = "buckets" if values.buckets is not None else "bucket-file"
    rows: object = values.buckets if values.bucket_file is None else _read_file(settled, folder / values.bucket_file)
    try:
        found = () if rows is None else _read_buckets(rows, key)
    except UsageError as error:
        raise settled.refusal(key, f"is wrong: {error.message}", error.hint) from None
    names = {axis.name for bucket in found for axis in bucket.sizes}
    if both := names & (values.at or {}).keys():
        raise settled.refusal(key, f"has sizes of `{min(both)}`, and `at` has one", "drop one of the two")
    return found


def _read_file(settled: SettledEntry, path: Path) -> object:
    hint = "it holds the line that `oomdoctor probe TARGET --over NAME=SIZE,SIZE --buckets json` prints"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise settled.refusal("bucket-file", f"names `{path}`, which cannot be read: {reason}", hint) from None
    except UnicodeDecodeError:
        raise settled.refusal("bucket-file", f"names `{path}`, which is no text", hint) from None
    except ValueError as error:
        raise settled.refusal("bucket-file", f"names `{path}`, which is no JSON: {error}", hint) from None


def _read_buckets(rows: object, option: str) -> tuple[Bucket, ...]:
    """Read buckets, each a table of sizes by name and its `micro-batch`, as `oomdoctor probe --buckets json` prints it.

    Raises:
        UsageError: They are none, one has no size or no micro-batch, two have the same sizes, or sizes of other names.
    """
    if not isinstance(rows, list | tuple) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(f"`{option}` holds no list of buckets", hint=_BUCKETS)
    found = [_read_bucket(row, option) for row in rows]
    by_sizes: dict[tuple[Axis, ...], Bucket] = {}
    for bucket in found:
        if [axis.name for axis in bucket.sizes] != [axis.name for axis in found[0].sizes]:
            raise UsageError(f"`{option}` has buckets of different sizes", hint=f"name the same in each: {_BUCKETS}")
        if bucket.sizes in by_sizes:
            sizes = ", ".join(f"{axis.name} {axis.size}" for axis in bucket.sizes)
            raise UsageError(f"`{option}` has two buckets of {sizes}", hint="keep one")
        by_sizes[bucket.sizes] = bucket
    return tuple(found)


def _read_bucket(row: Mapping[object, object], option: str) -> Bucket:
    """Return a bucket, with its sizes in the order of their names."""
    named = {"micro_batch" if name == "micro-batch" else str(name): value for name, value in row.items()}
    sizes: dict[str, int] = {}
    for name, value in named.items():
        most = LARGEST_MICRO_BATCH if name == "micro_batch" else LARGEST_NUMBER
        try:
            sizes[name] = positive_number("micro-batch" if name == "micro_batch" else name, value, most)
        except UsageError as error:
            raise UsageError(f"in `{option}`, {error.message}", hint=_BUCKETS) from None
    samples = sizes.pop("micro_batch", None)
    if samples is None or not sizes:
        problem = "no micro-batch" if samples is None else "no size"
        raise UsageError(f"`{option}` has a bucket with {problem}", hint=_BUCKETS)
    return Bucket(tuple(starmap(Axis, sorted(read_sizes(sizes, option).items()))), samples)
