"""The command line: `main` parses, calls, and alone turns errors into an exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from oomdoctor import __version__
from oomdoctor.cli.check import check
from oomdoctor.cli.diagnose import diagnose
from oomdoctor.cli.gpus import gpus
from oomdoctor.cli.init import init
from oomdoctor.cli.lint import lint
from oomdoctor.cli.prescribe import prescribe
from oomdoctor.cli.probe import probe
from oomdoctor.cli.report import Help, report
from oomdoctor.cli.rule import rule
from oomdoctor.cli.run import RUN_SETTINGS, run
from oomdoctor.cli.verify import verify
from oomdoctor.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, OomdoctorError, UsageError
from oomdoctor.output import deliver, open_standard_streams, printable

if TYPE_CHECKING:
    from types import FrameType


class _Commands(TyperGroup):
    """Keeps an interrupt apart from a command that exits with 130: newer typers make the one of the other."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - its class is typer's own, which differs by version
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise typer.Abort from interrupt


app = typer.Typer(
    name="oomdoctor",
    cls=_Commands,
    help="How big a batch fits, why it ran out, and what to change.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: Rich doubles the time to show it
)
app.command()(probe)
app.command()(init)
app.command()(prescribe)
app.command(add_help_option=False)(check)
app.command(add_help_option=False)(diagnose)
app.command(context_settings=RUN_SETTINGS)(run)
app.command()(verify)
app.command(add_help_option=False)(lint)
app.command(add_help_option=False)(rule)
app.command(add_help_option=False)(gpus)
app.command()(report)


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer hands a flag over by position
    if value:
        deliver(f"oomdoctor {__version__}\n")
        raise typer.Exit


@app.callback(add_help_option=False)
def root(
    *,
    _help: Help = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How big a batch fits, why it ran out, and what to change."""


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; None for this process's own.

    Returns:
        The exit code: 0 fits or clean, 1 a gate failed, 2 usage or target, 3 no answer, 70 a bug, 130 interrupted.
    """
    open_standard_streams()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(args=argv, prog_name="oomdoctor", standalone_mode=False)
    except SystemExit as exit_:
        code = exit_.code
    except OomdoctorError as error:
        return _print_error(error)
    except (KeyboardInterrupt, typer.Abort) as interrupt:
        _print_interrupt(interrupt)
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place where a bug of ours ends
        return _end_of(error)
    return code if isinstance(code, int) else EXIT_OK


def entry_point() -> None:
    """The console script."""
    sys.exit(main())


def _end_of(error: Exception) -> int:
    """Print an error that is none of ours, and return the exit code."""
    if isinstance(error.__cause__, KeyboardInterrupt):  # CPython 3.11 hides it so while it makes a class
        _print_interrupt(error)
        return EXIT_INTERRUPTED
    if callable(said := getattr(error, "format_message", None)):  # a mistake on the command line, as Typer has it
        return _print_usage(str(said()), getattr(getattr(error, "ctx", None), "command_path", "oomdoctor"))
    if not _has_working_directory():
        return _print_error(UsageError("the working directory was deleted", hint="change to a folder that exists"))
    typer.echo(traceback.format_exc(), err=True)
    typer.echo("error: this is a bug in oomdoctor; please report it with the lines above", err=True)
    return EXIT_BUG


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """A polite end is an interrupt: what was started gets ended, and nothing is half written."""
    raise KeyboardInterrupt


def _print_interrupt(error: BaseException) -> None:
    typer.echo("interrupted", err=True)
    link: BaseException | None = error
    while link is not None:  # typer raises its own end from the interrupt
        for note in getattr(link, "__notes__", ()):
            typer.echo(printable(note), err=True)
        link = link.__cause__ or link.__context__


def _has_working_directory() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - a path is not wanted
    except FileNotFoundError:
        return False
    return True


def _print_error(error: OomdoctorError) -> int:
    typer.echo(f"error: {printable(error.message)}", err=True)
    notes = getattr(error, "__notes__", ())
    for part in (*notes, error.details, error.hint and f"hint: {error.hint}"):
        if part:
            typer.echo(f"\n{printable(part)}", err=True)
    return error.exit_code


_PLAIN_WORDS: Final = {
    r"Input should be a valid integer.*": "give a whole number",
    r"Input should be a valid number.*": "give a number",
    r"Input should be greater than or equal to (.+)": r"give \1 or more",
    r"Input should be less than or equal to (.+)": r"give \1 or less",
    r"Value error, ": "",
}
"""Words of the library that reads options, by what is said instead."""


_OF_CARDS: Final = re.compile(r"no such option: --(gpu|device|engine|capacity)\b")
"""Options of other commands that somebody tries with one that needs no card."""


def _print_usage(message: str, command: str) -> int:
    """Print a mistake on the command line as every other error, with the command whose help has the options."""
    if message.startswith("Usage:"):  # no command at all is answered with the help
        typer.echo(message, err=True)
        return EXIT_USAGE
    for found, said in _PLAIN_WORDS.items():
        message = re.sub(found, said, message)
    message = f"{message[:1].lower()}{message[1:]}".removesuffix(".")
    hint = f"`{command} --help` lists what there is"
    if command.endswith(" verify") and _OF_CARDS.match(message):
        message, hint = message.partition(" (")[0], f"`verify` compares on the CPU, which needs no card; {hint}"
    return _print_error(UsageError(message, hint=hint))
