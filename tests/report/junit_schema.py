"""Checks XML against as much of XML Schema as Jenkins' schema of JUnit reports uses; anything more is refused."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

_XS = "{http://www.w3.org/2001/XMLSchema}"
_SCHEMA = ET.parse(Path(__file__).parent / "data" / "junit-10.xsd").getroot()  # noqa: S314 - a file of the repository
_ELEMENTS = {element.attrib["name"]: element for element in _SCHEMA.findall(f"{_XS}element")}
_PATTERNS = {
    kind.attrib["name"]: kind.find(f"{_XS}restriction/{_XS}pattern").attrib["value"]  # type: ignore[union-attr]
    for kind in _SCHEMA.findall(f"{_XS}simpleType")
}


def check(element: ET.Element) -> None:
    """Assert that an element and all in it have the attributes, children and text that the schema allows."""
    described = _ELEMENTS[element.tag]
    kind = described.find(f"{_XS}complexType")
    if kind is None:
        assert described.attrib["type"] == "xs:string"
        assert not element.attrib
        assert not len(element)
        return
    _check_attributes(element, kind)
    allowed = {child.attrib["ref"] for child in kind.iter(f"{_XS}element")}
    assert {child.tag for child in element} <= allowed, (element.tag, allowed)
    if kind.get("mixed") != "true":
        assert not "".join([element.text or "", *(child.tail or "" for child in element)]).strip()
    for child in element:
        check(child)


def _check_attributes(element: ET.Element, kind: ET.Element) -> None:
    attributes = {attribute.attrib["name"]: attribute for attribute in kind.iter(f"{_XS}attribute")}
    assert set(element.attrib) <= set(attributes), element.attrib
    required = {name for name, attribute in attributes.items() if attribute.get("use") == "required"}
    assert required <= set(element.attrib), element.attrib
    for name, value in element.attrib.items():
        if (pattern := _PATTERNS.get(attributes[name].attrib["type"])) is not None:
            assert re.fullmatch(pattern, value), (name, value)
