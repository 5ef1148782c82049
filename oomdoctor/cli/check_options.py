"""Options of `oomdoctor check`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Names: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Entries to run; without any, all of them.", show_default=False),
]
Gpus: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="CARD",
        help="Card to ask about instead of those in the configuration; may be given several times.",
        show_default=False,
    ),
]
Memory: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Capacity to ask about, such as 16GiB.", show_default=False)
]
Tolerance: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Share by which a figure may be worse than in the baseline, such as 5% [default: 2%].",
        show_default=False,
    ),
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Entries that run at once [default: one a core].", show_default=False),
]
UpdateFlag: TypeAlias = Annotated[
    bool, typer.Option("--update", help="Write what is found to the baseline; limits are held to all the same.")
]
NoCacheFlag: TypeAlias = Annotated[
    bool, typer.Option("--no-cache", help="Run every entry, even one that nothing has changed for.")
]
