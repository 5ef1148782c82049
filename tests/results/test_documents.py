"""Documents as JSON and back, the schema that describes them, and everything that is not one."""

from __future__ import annotations

import io
import json
from dataclasses import fields, is_dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jsonschema  # type: ignore[import-untyped]
import pytest
from check_documents import any_check, check
from diagnosis_documents import any_diagnosis, comparison, out_of_memory
from documents import any_probe_document, gpt2, nothing_fits
from fit_documents import fitted
from frontier_documents import frontier
from hypothesis import given, settings
from hypothesis import strategies as st
from lint_documents import any_lint, mistakes
from memory_documents import profiled
from prescribe_documents import prescribed
from verify_documents import verified

from oomdoctor import results
from oomdoctor.codec import is_added_later
from oomdoctor.errors import UsageError
from oomdoctor.results import Document
from oomdoctor.results.document import DOCUMENTS
from oomdoctor.results.saved import MAXIMUM_DOCUMENT_BYTES, from_json, read_document, to_data, to_json

KINDS: dict[str, Any] = dict(DOCUMENTS)
SCHEMAS: dict[str, Any] = {
    command: json.loads(files("oomdoctor.schemas").joinpath(f"{command}.schema.json").read_text(encoding="utf-8"))
    for command in KINDS
}
SAVED = Path(__file__).parents[1] / "report" / "data" / "probe-gpt2.json"
CLASSES: list[Any] = [value for value in vars(results).values() if is_dataclass(value)]
SAMPLES: dict[str, Document] = {
    "probe": profiled(),
    "diagnose": out_of_memory(comparison=comparison()),
    "lint": mistakes(),
    "check": check(),
    "fit": fitted(),
    "verify": verified(),
    "prescribe": prescribed(),
    "frontier": frontier(),
}
any_document = any_probe_document | any_diagnosis | any_lint | any_check


def needed(kind: Any, found: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """The dataclasses that `kind` is made of, itself first."""
    if not is_dataclass(kind):
        for argument in get_args(kind):
            found = needed(argument, found)
        return found
    if kind in found:
        return found
    found = (*found, kind)
    for hint in get_type_hints(kind).values():
        found = needed(hint, found)
    return found


def later_fields(kind: Any) -> set[str]:
    """The fields that documents of the first version did not have."""
    return {field.name for field in fields(kind) if is_added_later(field)}


PARTS = [(command, kind) for command, document in KINDS.items() for kind in needed(document)]


LATER = {later for _, kind in PARTS for later in later_fields(kind)}


def places(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every value in plain data; of a list's items only the last, which is as good as any."""
    items = (
        list(data.items()) if isinstance(data, dict) else list(enumerate(data))[-1:] if isinstance(data, list) else []
    )
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


def parent(data: Any, path: tuple[str | int, ...]) -> Any:
    """The container that holds the value at `path`."""
    for key in path[:-1]:
        data = data[key]
    return data


def name(path: tuple[str | int, ...]) -> str:
    """A path as messages print it."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


# --- there and back --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(any_document)
def test_round_trip(document: Document) -> None:
    """What was written reads back as an equal document."""
    assert from_json(to_json(document), "x") == document


def test_whole_numbers_stay_whole() -> None:
    """A limit's number that was written as a whole one comes out as one, so that a report in JSON is the document."""
    text = to_json(check())
    assert to_json(from_json(text, "x")) == text


@settings(deadline=None)
@given(any_document)
def test_written_documents_follow_the_schema(document: Document) -> None:
    """Every document that can be written is valid under the shipped schema of its command."""
    jsonschema.Draft202012Validator(
        SCHEMAS[next(name for name, kind in KINDS.items() if isinstance(document, kind))]
    ).validate(json.loads(to_json(document)))


def test_saved_document_of_version_1_stays_readable() -> None:
    """A document saved by an earlier version is valid, reads, and is what it was."""
    jsonschema.Draft202012Validator(SCHEMAS["probe"]).validate(json.loads(SAVED.read_bytes()))
    assert read_document(str(SAVED)) == gpt2()


def test_names_that_others_rely_on() -> None:
    """The document begins with its version and has its values where the design says."""
    data: Any = to_data(gpt2())
    assert list(data) == ["schema_version", "command", "status", "exit_code", "versions", "result"]
    result = data["result"]
    assert (result["micro_batch"]["maximum"], result["micro_batch"]["recommended"]) == (19, 18)
    assert result["accumulation"]["micro_batches"] == [19] * 4 + [18] * 10
    assert result["device"]["kind"] == "null"
    assert result["trials"][2]["outcome"] == "oom"
    assert result["phases"][5]["phase"] == "backward"
    assert to_data(nothing_fits())["result"]["accumulation"] is None  # type: ignore[index]


def test_unknown_fields_are_passed_over() -> None:
    """A document of a newer version with more fields still reads."""
    data: Any = to_data(gpt2())
    data["added"] = {"deep": [1]}
    data["result"]["trials"][0]["added"] = None
    assert from_json(json.dumps(data), "x") == gpt2()


# --- the schema ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", SCHEMAS)
def test_schema_is_a_schema(command: str) -> None:
    """Each command's schema is itself valid JSON Schema 2020-12."""
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[command])


@pytest.mark.parametrize(
    ("command", "kind"), PARTS, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_schema_and_dataclasses_agree(command: str, kind: Any) -> None:
    """Every dataclass has its object in the schema: the same fields of the same types, required unless added later."""
    schema = SCHEMAS[command]
    described = schema if kind is KINDS[command] else schema["$defs"][kind.__name__]
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    assert set(described["properties"]) == names
    assert set(described["required"]) == names - later_fields(kind)
    for field, hint in hints.items():
        assert_describes(described["properties"][field], hint)
        assert described["properties"][field]["description"].endswith(".")


@pytest.mark.parametrize("command", SCHEMAS)
def test_schema_describes_nothing_else(command: str) -> None:
    """The schema has no definition without a dataclass."""
    document, *parts = needed(KINDS[command])
    assert document is KINDS[command]
    assert set(SCHEMAS[command]["$defs"]) == {kind.__name__ for kind in parts}


def test_schemas_agree_with_each_other() -> None:
    """What the documents of two commands share is described in the same words."""
    for schema in SCHEMAS.values():
        for other in SCHEMAS.values():
            for part in schema["$defs"].keys() & other["$defs"].keys():
                assert schema["$defs"][part] == other["$defs"][part], part


def test_every_dataclass_is_in_a_schema() -> None:
    """No public result is left undescribed, and every document has a reader."""
    assert {kind for _, kind in PARTS} == set(CLASSES)
    assert set(KINDS) == set(SAMPLES)


def assert_describes(schema: dict[str, Any], hint: Any) -> None:
    """Assert that a property's schema takes what its type hint takes."""
    if NoneType in get_args(hint):
        kinds = [argument for argument in get_args(hint) if argument is not NoneType]
        assert kinds[1:] in ([], [int])
        hint = kinds[0]  # a number is a float or an integer
        if "anyOf" in schema:
            inner, null = schema["anyOf"]
            assert null == {"type": "null"}
            assert_describes(inner, hint)
            return
        kind, null = schema["type"]
        assert null == "null"
        assert_describes({**schema, "type": kind}, hint)
    elif is_dataclass(hint):
        assert schema["$ref"] == f"#/$defs/{hint.__name__}"  # type: ignore[union-attr]
    elif get_origin(hint) is Literal:
        assert schema.get("enum", [schema.get("const")]) == list(get_args(hint))
    elif get_origin(hint) is tuple:
        assert schema["type"] == "array"
        assert_describes(schema["items"], get_args(hint)[0])
    elif get_origin(hint) is dict:
        assert_describes(schema["additionalProperties"], get_args(hint)[1])
    elif issubclass(hint, StrEnum):
        assert schema["enum"] == [member.value for member in hint]
    elif "const" in schema or "enum" in schema:
        assert all(type(value) is hint for value in schema.get("enum", [schema.get("const")]))
    else:
        assert schema["type"] == {int: "integer", float: "number", str: "string", bool: "boolean"}[hint]


# --- what is not a document ------------------------------------------------------------------------------------------


PATHS = [(command, path) for command, sample in SAMPLES.items() for path in places(to_data(sample)) if path]


def refusal(text: str) -> UsageError:
    """The error that `text` is refused with."""
    with pytest.raises(UsageError) as caught:
        from_json(text, "`x.json`")
    assert caught.value.hint
    assert not caught.value.message.endswith(".")
    return caught.value


@pytest.mark.parametrize(("command", "path"), PATHS, ids=lambda value: value if isinstance(value, str) else name(value))
def test_wrong_type_anywhere_names_the_field(command: str, path: tuple[str | int, ...]) -> None:
    """A value of a wrong type is refused with its path, wherever it stands."""
    data = to_data(SAMPLES[command])
    holder = parent(data, path)
    holder[path[-1]] = "?" if isinstance(holder[path[-1]], dict | list) else ["?"]
    expected = "schema_version" if path == ("schema_version",) else f"`{name(path)}` in `x.json`"
    assert expected in refusal(json.dumps(data)).message


@pytest.mark.parametrize(
    ("command", "path"),
    [(command, path) for command, path in PATHS if isinstance(path[-1], str)],
    ids=lambda value: value if isinstance(value, str) else name(value),
)
def test_missing_field_anywhere_is_named(command: str, path: tuple[str | int, ...]) -> None:
    """A field that is missing is refused with its path, unless a later version added it; versions' names are free."""
    data = to_data(SAMPLES[command])
    del parent(data, path)[path[-1]]
    if (path[0] == "versions" and len(path) > 1) or path[-1] in LATER:
        from_json(json.dumps(data), "x")
        return
    message = refusal(json.dumps(data)).message
    assert f"`{name(path)}`" in message
    assert "is missing" in message or "no `schema_version`" in message


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (
            ("result", "trials", 2, "outcome"),
            "maybe",
            '`result.trials[2].outcome` in `x.json` is `"maybe"`, not one of',
        ),
        (("result", "capacity_bytes"), -1, "`result.capacity_bytes` in `x.json` is `-1`, not between 0"),
        (("result", "capacity_bytes"), 2**63, "not between 0 and 2**63 - 1"),
        (("result", "capacity_bytes"), 1.5, "is `1.5`, not an integer"),
        (("result", "capacity_bytes"), True, "is `true`, not an integer"),
        (("result", "stable"), 1, "is `1`, not true or false"),
        (("result", "headroom"), -0.5, "is `-0.5`, not a number of at least 0"),
        (("result", "headroom"), False, "is `false`, not a number"),
        (("result", "target"), None, "is `null`, not a string"),
        (("command",), "run", 'is `"run"`, not one of `probe`, `diagnose`, `lint`, `check`'),
        (("schema_version",), 2, "has `schema_version` 2, and this oomdoctor reads 1"),
        (("schema_version",), True, "has `schema_version` true, and"),
        (("schema_version",), "1", 'has `schema_version` "1", and'),
    ],
)
def test_wrong_values(path: tuple[str | int, ...], value: object, expected: str) -> None:
    """Values of the right place and the wrong kind each get their own words."""
    data = to_data(gpt2())
    parent(data, path)[path[-1]] = value
    assert expected in refusal(json.dumps(data)).message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "`x.json` is empty"),
        (" \n", "`x.json` is empty"),
        ("micro-batch 19 fits", "is not JSON, or was cut short"),
        ("[]", "is JSON, but a list instead of a document"),
        ('"x"', "is JSON, but a string instead of a document"),
        ("null", "is JSON, but a single value instead"),
        ('{"version": "2.1.0", "runs": []}', "it has no `schema_version`"),
        ('{"schema_version": NaN}', "`NaN` is not a number in JSON"),
        ('{"schema_version": ' + "9" * 5000 + "}", "is not JSON that can be read"),
        ("[" * 200_000, "is nested too deeply"),
        ('{"a":' * 200_000, "is nested too deeply"),
    ],
    ids=lambda value: value[:20],
)
def test_other_texts(text: str, expected: str) -> None:
    """Other text, other tools' JSON, numbers and nesting beyond reason are refused in words."""
    assert expected in refusal(text).message


def test_infinite_figure() -> None:
    """A number too large for a float, which JSON reads as infinity, is refused."""
    text = to_json(gpt2()).replace('"headroom": 0.05', '"headroom": 1e999')
    assert "`result.headroom`" in refusal(text).message


@given(st.integers(0, len(to_json(gpt2())) - 3))
def test_truncated_anywhere(length: int) -> None:
    """A document cut short at any place is refused."""
    refusal(to_json(gpt2())[:length])


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda tail: to_json(gpt2()).encode()[:-60] + tail))
def test_binary(data: bytes) -> None:
    """Bytes of any kind are refused with a usage error and nothing else."""
    with pytest.raises(UsageError):
        read_document("-", io.BytesIO(data))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_that_shells_write(encoding: str) -> None:
    """A redirect of any shell reads, byte order mark or not."""
    assert read_document("-", io.BytesIO(to_json(gpt2()).encode(encoding))) == gpt2()


def test_endless_input_is_refused(tmp_path: Path) -> None:
    """A file of 100 MB, and one without an end, are refused after a bounded read."""
    large = tmp_path / "large.json"
    with large.open("wb") as stream:
        stream.truncate(100 * 10**6)
    for source in (str(large), "/dev/zero"):
        with pytest.raises(UsageError, match=f"{MAXIMUM_DOCUMENT_BYTES // 1024**2} MiB"):
            read_document(source)


@pytest.mark.parametrize(
    ("source", "expected"), [("none.json", "no such file"), (".", "is a directory"), ("a\0b", "cannot be read")]
)
def test_paths_that_hold_nothing(source: str, expected: str) -> None:
    """Paths that cannot be read each say why."""
    with pytest.raises(UsageError, match=expected):
        read_document(source)
