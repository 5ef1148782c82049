"""The report of `gpus --fit` at several sizes: a column for each."""

from __future__ import annotations

from fit_documents import fitted, fitted_at_sizes

from oomdoctor.output import Terminal
from oomdoctor.report import fit


def test_each_size_is_a_column() -> None:
    """A card is one row; what a size has no answer for is told once, and issues name both."""
    document = fitted_at_sizes()
    text = fit.text(document, Terminal(200))
    lines = text.splitlines()
    assert lines[0].split("  ")[-1].strip() == "width 8, context 2048"
    assert [line.split() for line in lines[2:4]] == [
        ["rtx-4090", "24.00", "GiB", "100", "(94)", "no", "answer"],
        ["gtx-1650", "4.00", "GiB", "-", "no", "answer"],
    ]
    assert text.count("2048 positions") == 1
    assert "train.py, side 64, bf16" in text
    assert "| card | memory | width 8, context 512 | width 8, context 2048 |\n| --- | --: | --: |" in fit.markdown(
        document
    )
    found = fit.issues(document)
    assert found.headline == "train.py fits 1 of 4 combinations of card and size."
    assert [issue.subject for issue in found.groups[0].issues[:2]] == [
        "rtx-4090 at width 8, context 512",
        "rtx-4090 at width 8, context 2048",
    ]


def test_without_a_target_batch_nothing_is_limited_by_one() -> None:
    """The largest size that is ever tried is the limit where nobody named a target."""
    shown = fit.text(fitted(target_batch=None), Terminal(width=120))
    assert "target batch" not in shown
    assert "nothing above is tried" in shown
