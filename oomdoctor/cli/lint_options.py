"""Options of `oomdoctor lint`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import typer

from oomdoctor.cli.choices import metavar, one_of

Paths: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH",
        help="Files and folders; `-` for standard input. Without any, the working directory.",
        show_default=False,
    ),
]
Words: TypeAlias = list[str] | None
"""Values that may be given several times, or at once with commas between them."""

Select: TypeAlias = Annotated[
    Words,
    typer.Option(
        "--select",
        metavar="RULES",
        help="Rules to use instead of the default ones: codes, beginnings of codes such as OOM2, names, or ALL.",
        show_default=False,
    ),
]
Ignore: TypeAlias = Annotated[
    Words, typer.Option("--ignore", metavar="RULES", help="Rules not to use.", show_default=False)
]
ExtendSelect: TypeAlias = Annotated[
    Words, typer.Option("--extend-select", metavar="RULES", help="Rules to use besides.", show_default=False)
]
PerFileIgnores: TypeAlias = Annotated[
    Words,
    typer.Option(
        "--per-file-ignores",
        metavar="GLOB:RULE",
        help="Rules not to use in some files, such as 'tests/**:OOM101'.",
        show_default=False,
    ),
]
Exclude: TypeAlias = Annotated[
    Words,
    typer.Option(
        "--exclude",
        metavar="GLOBS",
        help="Files and folders to pass over, besides those in .gitignore.",
        show_default=False,
    ),
]
Least: TypeAlias = Literal["note", "warning", "error"]
FailOn: TypeAlias = Annotated[
    Least | None,
    typer.Option(
        "--fail-on",
        parser=one_of(*get_args(Least)),
        metavar=metavar(*get_args(Least)),
        help="Mildest finding that makes the exit code 1 [default: warning].",
        show_default=False,
    ),
]
ExitZero: TypeAlias = Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 whatever is found.")]
FixFlag: TypeAlias = Annotated[bool, typer.Option("--fix", help="Put right what can safely be put right.")]
DiffFlag: TypeAlias = Annotated[
    bool,
    typer.Option("--diff", help="Show what --fix would change, and write nothing; exit with 1 if that is anything."),
]
StatisticsFlag: TypeAlias = Annotated[
    bool, typer.Option("--statistics", help="Count findings by rule instead of showing them.")
]
StdinFilename: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What to call standard input; .ipynb makes it a notebook.", show_default=False),
]
ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration to read, instead of the nearest oomdoctor.toml or pyproject.toml.",
        show_default=False,
    ),
]
IsolatedFlag: TypeAlias = Annotated[bool, typer.Option("--isolated", help="Read no configuration file.")]
VerboseFlag: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say on stderr which settings hold, and where they come from.")
]
