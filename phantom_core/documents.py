"""From text to plain objects: JSON, or YAML without its traps. Torch-free.

DocumentError   a ValueError: the text can't be read; says where and why

YAML here is read by the 1.2 core schema, so that `1e-3` is a number, `no` and `2024-01-01` are text, `1:30`
is no ninety and `010` is ten. In both languages a key that occurs twice is refused, not silently the last
one taken. Aliases may be used, but not to stand for more nodes than a person would write.
"""

import json
import re
from collections import Counter
from typing import Any, ClassVar

import yaml

MAX_YAML_CHARACTERS = 262_144
"""YAML is parsed in Python, at some 100,000 characters a second; what is longer can be given as JSON."""
MAX_YAML_NODES = 200_000
"""Most nodes of a YAML document with its aliases written out: nine lines can stand for billions."""
MAX_DEPTH = 100
"""Deepest nesting of lists and mappings."""
_MAX_DIGITS = 400


class DocumentError(ValueError):
    """A text is not the document that it should be."""


def parse_document(text: str) -> dict[str, Any]:
    """Parses JSON or YAML into a mapping, refusing everything else.

    Args:
        text: The document; JSON is tried first, then YAML.

    Returns:
        The mapping. NaN and infinities are kept: the model that reads it says which field holds them.

    Raises:
        DocumentError: The text is neither, or its top level is no mapping.
    """
    try:
        document = parse_json(text)
    except DocumentError as not_json:
        try:
            document = parse_yaml(text)
        except DocumentError as not_yaml:
            # JSON is nearly YAML, so what begins like JSON was probably meant to be.
            error = not_json if text.lstrip().startswith(("{", "[")) else not_yaml
            raise DocumentError(f"the document can't be read: {error}") from error
    if not isinstance(document, dict):
        kind = "empty" if document is None else f"a {type(document).__name__}"
        raise DocumentError(f"the document is {kind}; it must be a mapping of fields")
    return document


def parse_json(text: str) -> Any:
    """Parses JSON, refusing keys that occur twice.

    Raises:
        DocumentError: It is no JSON, is nested too deeply, or repeats a key.
    """
    try:
        document = _JSON.decode(text)
    except json.JSONDecodeError as error:
        raise DocumentError(f"as JSON: {error}") from error
    except RecursionError as error:
        raise DocumentError(f"as JSON: nested more than {MAX_DEPTH} deep") from error
    # Too few brackets to be deep, and no escapes to write half of a pair with: most texts show it by themselves.
    if text.count("[") + text.count("{") >= MAX_DEPTH or "\\u" in text or not text.isascii():
        _check_tree(document)
    return document


def parse_yaml(text: str) -> Any:
    """Parses one YAML document by the 1.2 core schema, refusing repeated keys and endless aliases.

    Raises:
        DocumentError: It is no YAML, is too long, too deep or too large once its aliases are expanded,
            repeats a key, or asks for types beyond text, numbers, booleans, null, lists and mappings.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise DocumentError(
            f"as YAML: {len(text):,} characters; the limit is {MAX_YAML_CHARACTERS:,}, give more as JSON"
        )
    try:
        document = _construct(_Loader(text))
    except yaml.YAMLError as error:
        raise DocumentError(f"as YAML: {error}") from error
    except RecursionError as error:
        raise DocumentError(f"as YAML: nested more than {MAX_DEPTH} deep") from error
    _check_tree(document)
    return document


def _construct(loader: "_Loader") -> Any:
    root = loader.get_single_node()
    if root is None:
        return None
    if _expanded_nodes(root, {}, set()) > MAX_YAML_NODES:
        raise DocumentError(f"as YAML: more than {MAX_YAML_NODES:,} nodes once its aliases are expanded")
    return loader.construct_document(root)


class _Loader(yaml.SafeLoader):
    """Core schema; the tables below replace SafeLoader's, which follow YAML 1.1."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}  # type: ignore[misc]
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """Decimal digits."""
        text = str(self.construct_scalar(node))
        if not re.fullmatch(_INTEGER, text):
            raise DocumentError(f"as YAML: line {_line(node)}: {text[:40]!r} is no integer")
        return _integer(text)

    def construct_float(self, node: yaml.ScalarNode) -> float:
        """A number with a point, an exponent, or no end."""
        text = str(self.construct_scalar(node))
        if not re.fullmatch(_FLOAT, text):
            raise DocumentError(f"as YAML: line {_line(node)}: {text[:40]!r} is no number")
        # Python writes infinity and NaN without the point.
        return float(text.replace(".", "") if re.fullmatch(_NOT_FINITE, text) else text)

    def construct_unknown(self, node: yaml.Node) -> Any:
        """Nothing: other types have no place in a document of text and numbers."""
        raise DocumentError(f"as YAML: line {_line(node)}: the type {node.tag} can't be used here; remove it")

    def construct_bool(self, node: yaml.ScalarNode) -> bool:
        """`true` or `false`."""
        if not re.fullmatch(_BOOLEAN, node.value):
            raise DocumentError(f"as YAML: line {_line(node)}: {node.value!r} is neither true nor false")
        return str(node.value).lower() == "true"


_INTEGER = r"[-+]?[0-9]+"
_NOT_FINITE = r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_FLOAT = rf"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|{_NOT_FINITE}"
_BOOLEAN = r"true|True|TRUE|false|False|FALSE"
_TAG = "tag:yaml.org,2002:"
# Each with the characters that it can begin with; an integer is tried before a number that may have a point.
for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", _BOOLEAN, list("tTfF")),
    ("int", _INTEGER, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)
for _name, _constructor in (
    ("null", _Loader.construct_yaml_null),
    ("bool", _Loader.construct_bool),
    ("int", _Loader.construct_int),
    ("float", _Loader.construct_float),
    ("str", _Loader.construct_yaml_str),
    ("seq", _Loader.construct_yaml_seq),
    ("map", _Loader.construct_yaml_map),
):
    _Loader.add_constructor(_TAG + _name, _constructor)
_Loader.add_constructor(None, _Loader.construct_unknown)


def _expanded_nodes(node: yaml.Node, known: dict[int, int], above: set[int]) -> int:
    """Nodes under a node when every alias is written out; checks the keys of every mapping on the way."""
    if id(node) in above:
        raise DocumentError(
            f"as YAML: line {_line(node)}: the alias stands for something that contains itself"
        )
    if id(node) not in known:
        above.add(id(node))
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            _check_keys(node)
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_expanded_nodes(child, known, above) for child in children)
        above.discard(id(node))
    return known[id(node)]


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag == _TAG + "merge":
            continue
        if key.tag != _TAG + "str":
            raise DocumentError(f"as YAML: line {_line(key)}: a field's name must be text; quote it")
        if key.value in seen:
            raise DocumentError(f"as YAML: line {_line(key)}: {key.value!r} occurs twice; keep one")
        seen.add(key.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        # A document of hundreds of thousands of names must not be searched once for each.
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise DocumentError(f"as JSON: {repeated[:40]!r} occurs twice; keep one")
    return mapping


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise DocumentError(f"a number has {len(text):,} digits; the limit is {_MAX_DIGITS}")
    return int(text)


_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer)


def _check_tree(document: Any) -> None:
    """Refuses what models and databases would stumble over: deep nesting, and halves of surrogate pairs."""
    waiting = [(document, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise DocumentError(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list):
            waiting += [(part, depth + 1) for part in item]
        elif isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError as error:
                raise DocumentError(f"{item[:40]!r} is no valid Unicode: {error.reason}") from error
