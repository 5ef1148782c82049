"""Documents whose every text is hostile."""

from __future__ import annotations

from dataclasses import replace

from diagnosis_documents import comparison, occurrence, out_of_memory, snapshot

from oomdoctor.results import DiagnosisDocument, Facts, MemoryLine, ProcessMemory, SourceLine

MIB = 1024**2

HOSTILE = [
    "<script>document.title='run'</script>",
    "</pre></code></section></main><script>document.title='run'</script>",
    "</style><style>body{display:none}</style>",
    "</title><script>document.title='run'</script>",
    '"><img src=x onerror="document.title=\'run\'">',
    "' onmouseover='document.title=1' x='",
    "<svg onload=document.title='run'><a xlink:href='javascript:1'>x</a></svg>",
    "<iframe src=https://example.org></iframe><link rel=stylesheet href=https://example.org/x.css>",
    "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "<!-- <![CDATA[ -->",
    "{{ 7 * 7 }}{% raw %}{# #}",
    "&lt;b&gt; &amp; &#60;script&#62;",
    "javascript:alert(1)",
    "\x1b[31mred\x1b[0m \x1b]8;;https://example.org\x07link\x1b]8;;\x07",
    "\u202eevil\u2066 \u2069bidi\u200f",
    "nul\x00 bell\x07 tab\t",
    "half \ud800 a pair",
    "x" * MIB,
    "\u754c" * 5000,
    "-" * 300 + "\u00a0" * 300 + "y",
]
"""Texts that would do something where they are not escaped, or would break a layout."""


def filled_with(text: str) -> DiagnosisDocument:
    """The sample with `text` in each place that a log, a snapshot or a saved document controls."""
    line = SourceLine(text, 1, text, text)
    sample = out_of_memory().result
    facts = replace(sample.facts, user_line=line, other_processes=(ProcessMemory(1, None),))
    found = snapshot()
    lines = tuple(MemoryLine(line, row.category, row.allocated_bytes, row.blocks) for row in found.peak.lines)
    found = replace(
        found,
        source=text,
        peak=replace(found.peak, lines=lines),
        end=replace(found.end, lines=lines),
        largest=tuple(replace(block, place=line, innermost=text) for block in found.largest),
        growing=tuple(replace(row, place=line) for row in found.growing),
    )
    compared = comparison()
    document = out_of_memory(
        sources=(text, text),
        facts=facts,
        causes=tuple(replace(cause, evidence=text) for cause in sample.causes),
        remedies=tuple(replace(remedy, id=text, change=text, how=text, cost=text) for remedy in sample.remedies),
        notes=(text,),
        next_steps=tuple(replace(step, what=text, command=text) for step in sample.next_steps),
        occurrences=(
            occurrence(source=text, message=text, kind=text),
            occurrence(source=text, message=text, kind=text, is_oom=False, facts=Facts()),
        ),
        snapshots=(found,),
        comparison=replace(
            compared, before=text, after=text, lines=tuple(replace(row, place=line) for row in compared.lines)
        ),
    )
    return replace(document, versions={text: text})
