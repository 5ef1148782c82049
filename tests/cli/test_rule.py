"""`oomdoctor rule`: one rule explained, or all of them listed, in every format."""

from __future__ import annotations

import json
import re

import pytest
from running import INVOCATIONS, Run, run_command

from oomdoctor.cli import main
from oomdoctor.errors import UsageError
from oomdoctor.lint.rule import Rule
from oomdoctor.lint.rules import ALL
from oomdoctor.output import Terminal
from oomdoctor.report import rule as markdown
from oomdoctor.report import rule as text


@pytest.mark.parametrize("invocation", INVOCATIONS)
def test_a_rule_is_explained(invocation: str) -> None:
    """A rule's page has what it looks for, why that is bad, and both examples as they stand."""
    rule = next(rule for rule in ALL if rule.code == "OOM121")
    ended = run_command(["rule", "OOM121"], invocation=invocation)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("OOM121 retry-inside-except\n")
    for title in ("What it does", "Why that is bad", "Bad", "Good", "References"):
        assert f"\n{title}\n  " in ended.stdout
    for line in (*rule.bad.strip().splitlines(), *rule.references):
        assert f"  {line}".rstrip() in ended.stdout.splitlines()


@pytest.mark.parametrize("name", ["oom121", "retry-inside-except", "Retry_Inside_Except", " OOM121 "])
def test_a_rule_goes_by_code_or_name(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Code and name are found however they are written."""
    assert main(["rule", name]) == 0
    assert capfd.readouterr().out.startswith("OOM121 ")


def test_all_rules_are_listed(oomdoctor: Run) -> None:
    """`--all` has one line a rule, and says which are on and which have a fix."""
    lines = oomdoctor("rule", "--all").stdout.splitlines()
    assert lines[0].split() == ["code", "name", "severity", "concern", "default"]
    by_code = {line.split()[0]: line for line in lines if re.match(r"OOM\d+ ", line)}
    assert list(by_code) == [rule.code for rule in ALL]
    for rule in ALL:
        assert rule.name in by_code[rule.code]
        assert ("[*]" in by_code[rule.code]) == (rule.fixed is not None)
        assert by_code[rule.code].endswith("on" if rule.default else "off")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["OOM9999"], "there is no rule `OOM9999`"),
        (["OOM9999"], "codes are `OOM101` to `OOM1"),
        (["oom12"], "did you mean one of `OOM121`, `OOM122`, `OOM123`?"),
        (["OOM12l"], "did you mean `OOM12"),
        (["loss-keep-graph"], "did you mean `OOM102`, `loss-keeps-graph`?"),
        (["xyz"], "`oomdoctor rule --all` lists them"),
        ([], "name one rule, or give `--all`"),
        (["OOM121", "--all"], "name one rule, or give `--all`"),
        (["OOM121", "--format", "html"], "'--format': 'html' is not one of 'text', 'json', 'markdown'"),
        (["OOM121", "--json", "--markdown"], "`--json` and `--markdown` exclude each other"),
    ],
)
def test_bad_input(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What is no rule is answered with the nearest, and the exit code is 2."""
    assert main(["rule", *arguments]) == UsageError.exit_code
    output = capfd.readouterr()
    assert output.out == ""
    assert said in output.err


def test_json(oomdoctor: Run) -> None:
    """The JSON document has every field of the rule, and of all rules."""
    document = json.loads(oomdoctor("rule", "OOM104", "--format", "json").stdout)
    rule = next(rule for rule in ALL if rule.code == "OOM104")
    assert (document["command"], document["exit_code"]) == ("rule", 0)
    (found,) = document["result"]["rules"]
    assert found["fixable"] is True
    for name in ("code", "name", "summary", "explanation", "reason", "bad", "good", "fixed", "default"):
        assert found[name] == getattr(rule, name)
    document = json.loads(oomdoctor("rule", "--all", "--json").stdout)
    assert [each["code"] for each in document["result"]["rules"]] == [rule.code for rule in ALL]


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_every_rule_has_its_page(rule: Rule) -> None:
    """Each page is within its width but for code and addresses, and in Markdown its fences are closed."""
    page = text.render_rule(rule, Terminal(width=72))
    prose = page.partition("\nBad\n")[0]
    assert max(map(len, prose.splitlines())) <= 72
    assert "\x1b" not in page
    assert "\x1b[1m" in text.render_rule(rule, Terminal(color=True))
    page = markdown.render_rule_markdown(rule)
    assert page.count("```") % 2 == 0
    assert f"```python\n{rule.bad.strip()}\n```" in page


def test_markdown_table() -> None:
    """The table has one row a rule, whatever its summary holds."""
    lines = markdown.render_rules_markdown(ALL).splitlines()
    assert len(lines) == len(ALL) + 2
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}


def test_torch_is_not_imported(oomdoctor: Run) -> None:
    """The list is printed without torch: rules only speak of it."""
    ended = oomdoctor("rule", "--all", PYTHONPROFILEIMPORTTIME="1")
    assert "oomdoctor.lint.rules" in ended.stderr
    assert not re.search(r"\| +torch$", ended.stderr, re.MULTILINE)
