"""Documents are read as a person means them; what can't be meant is refused with its place."""

import contextlib
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from phantom_core.documents import MAX_DEPTH, DocumentError, parse_document, parse_json, parse_yaml

# PyYAML writes text such as 1e5 bare, which is text in YAML 1.1 and a number here.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda text: not text[-1:].isdigit()
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | TEXT
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        ("1E+2", 100.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("+3", 3),
        ("010", 10),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("no", "no"),
        ("Yes", "Yes"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("2024-01-01", "2024-01-01"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!int 12", 12),
        ("!!float 12", 12.0),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("1e", "1e"),
        ("-", [None]),
        (".", "."),
    ],
)
def test_yaml_scalars_follow_the_core_schema(text: str, value: Any) -> None:
    read = parse_yaml(f"key: {text}" if text != "-" else "key:\n -")["key"]
    assert read == value
    assert type(read) is type(value)


def test_yaml_has_a_nan() -> None:
    assert math.isnan(parse_yaml("x: .nan")["x"])


@given(TREES.map(lambda tree: {"tree": tree}))
def test_what_yaml_writes_is_read_back(document: dict[str, Any]) -> None:
    """PyYAML writes for YAML 1.1, so it quotes more than needed, but never less than the core schema needs."""
    text = yaml.safe_dump(document)
    if "!!binary" in text:  # text that PyYAML can't write as such
        return
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("key", ["name", "a b", "ü"])
def test_repeated_keys_are_refused_with_their_place(key: str) -> None:
    with pytest.raises(DocumentError, match=f"line 3: '{key}' occurs twice"):
        parse_document(f"{key}: 1\nother: 2\n{key}: 3")
    with pytest.raises(DocumentError, match=f"'{key}' occurs twice"):
        parse_document(f'{{"{key}": 1, "other": 2, "{key}": 1}}')
    with pytest.raises(DocumentError, match="occurs twice"):
        parse_document(f"list:\n- {{deep: {{{key}: 1, {key}: 1}}}}")


def test_anchors_and_merges_work_and_may_be_overridden() -> None:
    text = """
    base: &base {strategy: phantom, world_size: 4, ghosts: 1}
    derived: &derived {<<: *base, ghosts: 2}
    arms:
    - {<<: *derived, ghosts: 3, name: a}
    - {<<: [*derived, *base], name: b}
    - *base
    """
    arms = parse_yaml(text)["arms"]
    assert [arm["ghosts"] for arm in arms] == [3, 2, 1]
    assert all(arm["world_size"] == 4 for arm in arms)


def bomb(levels: int, merge: bool) -> str:
    lines = ["a0: &a0 {x: 1}" if merge else "a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        nine = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {{<<: [{nine}]}}" if merge else f"a{level}: &a{level} [{nine}]")
    return "\n".join(lines)


@pytest.mark.parametrize("merge", [False, True])
def test_alias_bombs_are_refused_before_they_are_built(merge: bool) -> None:
    with pytest.raises(DocumentError, match="more than 200,000 nodes"):
        parse_yaml(bomb(30, merge))
    assert parse_yaml(bomb(3, merge))


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {<<: *a}", "&a [[[*a]]]"])
def test_documents_that_contain_themselves_are_refused(text: str) -> None:
    with pytest.raises(DocumentError, match="contains itself"):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# only a comment", "empty"),
        ("null", "empty"),
        ("[]", "a list"),
        ("just text", "a str"),
        ("3", "an? int"),
        ("a: 1\n b: 2", "as YAML"),
        ("{", "as JSON"),
        ('{"a": 1,, }', "as JSON"),
        ("a: [1, 2", "as YAML"),
        ("--- {a: 1}\n--- {b: 2}", "single document"),
        ("a: !!python/object:os.system x", r"line 1: the type .*python/object"),
        ("a: !!binary aGk=", r"line 1: the type .*binary"),
        ("a: !!timestamp 2024-01-01", r"line 1: the type .*timestamp"),
        ("a: !!set {x}", r"line 1: the type .*set"),
        ("a: !own x", "line 1: the type !own"),
        ("a: !!bool x", "'x' is neither true nor false"),
        ("a: !!int x", "line 1"),
        ("a: !!float x", "line 1: 'x' is no number"),
        ("a: !!int 1.5", "line 1: '1.5' is no integer"),
        ("1: a", "a field's name must be text"),
        ("true: a", "a field's name must be text"),
        ("? [a]\n: b", "a field's name must be text"),
        ("null: a", "a field's name must be text"),
        ("\x01", "as YAML"),
        ("a: " + "9" * 401, "401 digits"),
        ('{"a": ' + "9" * 5000 + "}", "5,000 digits"),
        ('{"a": "\\ud800"}', "no valid Unicode"),
        ('{"\\udfff": 1}', "no valid Unicode"),
        ('a: "\\ud800"', "no valid Unicode"),
        ("a: *nobody", "undefined alias"),
        ("a: &x 1\nb: &x 2\nc: *x\nd: [", "as YAML"),
    ],
)
def test_what_is_no_document_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        parse_document(text)


@pytest.mark.parametrize("opening", ["[", '{"a":', "- ", "a: {b: "])
@pytest.mark.parametrize("depth", [101, 2_000, 100_000])
def test_deep_nesting_is_refused_in_both_languages(opening: str, depth: int) -> None:
    closing = {"[": "]", '{"a":': "}", "- ": "", "a: {b: ": "}"}[opening]
    text = opening * depth + "1" + closing * depth
    with pytest.raises(DocumentError, match=r"deep|characters|as YAML"):
        parse_document(text)
    shallow = '{"x": ' + "[" * 98 + "]" * 98 + "}"
    assert parse_document(shallow)


def test_long_yaml_is_refused_and_pointed_to_json() -> None:
    text = "a: " + "x" * 300_000
    with pytest.raises(DocumentError, match="give more as JSON"):
        parse_document(text)
    assert parse_document('{"a": "' + "x" * 300_000 + '"}')


def test_json_reads_as_json_even_where_yaml_would_differ() -> None:
    assert parse_json('{"a": 1e2, "b": "no", "c": [null, true]}') == {
        "a": 100.0,
        "b": "no",
        "c": [None, True],
    }
    assert math.isnan(parse_document('{"a": NaN}')["a"]), "the model says which field it is"


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(DocumentError):
        assert isinstance(parse_document(text), dict)


def test_json_is_nested_as_deep_as_the_limit_says_and_no_deeper() -> None:
    lists = MAX_DEPTH - 1
    parse_json("[" * lists + "1" + "]" * lists)
    with pytest.raises(DocumentError, match="nested more than"):
        parse_json("[" * (lists + 1) + "1" + "]" * (lists + 1))
    assert len(parse_json("[" + "[1]," * 300 + "1]")) == 301


@pytest.mark.parametrize("half", ['"\\ud800"', '{"\\udfff": 1}', '[["ä\\ud83d"]]', '"\\uD800"'])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_is(half: str) -> None:
    with pytest.raises(DocumentError, match="no valid Unicode"):
        parse_json(half)
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"
