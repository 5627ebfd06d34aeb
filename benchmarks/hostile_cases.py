"""What a hostile caller might send: documents that are nearly right or nothing at all, and odd addresses and headers.

Strategies for Hypothesis. `tests/api/test_hostile.py` draws some of each in the suite, `benchmarks.hostile` many
against a process of its own.
"""

import copy
from typing import Any

from hypothesis import strategies as st

numbers = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63, 2**64, 1e-400, 1e308, -0.0]),
)
texts = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=()), max_size=30),
    st.sampled_from(
        ["", "\x00", "\ud800", "a\x00b", "../../etc/passwd", "'; DROP TABLE runs; --", "{{7*7}}", "a" * 5_000]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)
ranges = st.one_of(
    st.builds("bytes={}-{}".format, st.integers(0, 10**20), st.one_of(st.just(""), st.integers(0, 10**20))),
    st.builds("bytes=-{}".format, st.integers(0, 10**20)),
    st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
    st.sampled_from(
        ["bytes=0-0,2-2", "bytes=", "bytes=--1", "lines=1-2", "bytes=5-1", "bytes=0-" + "9" * 30]
    ),
)
event_ids = st.one_of(
    st.integers(-1, 40).map(str),
    st.integers(-1, 2**70).map(str),
    st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
)
QUERY_NAMES = (
    *(
        "state",
        "name",
        "tag",
        "strategy",
        "submitted_after",
        "submitted_before",
        "cursor",
        "limit",
        "baseline",
    ),
    *("verdict", "saving_at_least", "width_at_least", "world_size", "board", "equal_loss", "order", "colour"),
    *("measured", "metric", "dtype", "precision", "attempt", "tail_bytes", "after", "max_points", "arm"),
)
query_values = st.one_of(
    texts,
    numbers.map(str),
    st.integers(1, 500).map(str),
    st.sampled_from(["true", "newest", "succeeded", "saves", "a=b", "phantom", "NaN", "1e999", "0.3"]),
    st.datetimes().map(lambda moment: f"{moment.isoformat()}Z"),
)
queries = st.one_of(
    st.lists(st.tuples(st.sampled_from(QUERY_NAMES), query_values), max_size=4),
    # Most names are known to few addresses: one alone gets further.
    st.tuples(st.tuples(st.sampled_from(QUERY_NAMES), query_values)).map(list),
)
header_values = st.binary(max_size=60).map(
    lambda raw: bytes(byte for byte in raw if byte not in b"\r\n\x00").strip()
)
HEADER_NAMES = (
    *("Idempotency-Key", "If-None-Match", "X-Request-ID", "Authorization", "Origin", "Accept", "Host"),
    *(
        "Range",
        "Last-Event-ID",
        "Expect",
        "Content-Encoding",
        "Cookie",
        "X-Forwarded-For",
        "X-HTTP-Method-Override",
    ),
)


def percent_encoded(text: str) -> str:
    """Any text as part of an address, every byte escaped; unpaired surrogates as what they would be."""
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))[:3_000]


def places(document: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [here]
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        found += places(value, (*here, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """A document that is nearly right: something replaced, removed, doubled or added."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([path for path in places(changed) if path]))
        holder = changed
        for key in place[:-1]:
            holder = holder[key]
        what = draw(st.sampled_from(["replace", "remove", "add", "double"]))
        if what == "replace":
            holder[place[-1]] = draw(documents)
        elif what == "remove":
            del holder[place[-1]]
        elif isinstance(holder, dict):
            holder[draw(texts)] = draw(documents) if what == "add" else copy.deepcopy(holder[place[-1]])
        else:
            holder.append(draw(documents) if what == "add" else copy.deepcopy(holder[place[-1]]))
        if not [path for path in places(changed) if path]:
            break
    return changed
