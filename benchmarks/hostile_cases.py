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
offsets = st.one_of(
    st.sampled_from(["Z", "+14:00", "-14:00", "+23:59", "-23:59", "+24:00", "+00:01", ""]),
    st.builds("{}{:02}:{:02}".format, st.sampled_from("+-"), st.integers(0, 23), st.integers(0, 59)),
)
moments = st.one_of(
    # A time zone away from years that there are not.
    st.builds("0001-01-01T0{}:00:00+{}:59".format, st.integers(0, 9), st.integers(10, 23)),
    st.builds("9999-12-31T1{}:59:59-{}:59".format, st.integers(0, 9), st.integers(14, 23)),
    st.builds(
        "{}T{:02}:{:02}:00{}".format,
        st.one_of(
            st.dates().map(lambda day: day.isoformat()),
            st.sampled_from(
                ["0001-01-01", "1969-12-31", "1970-01-01", "8999-12-31", "9000-01-01", "9999-12-31"]
            ),
        ),
        *(st.integers(0, 23), st.integers(0, 59), offsets),
    ),
    st.sampled_from(
        ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "-62135596800", "253402300799", "1e18"]
    ),
)
"""Times of all years and time zones, those among them that other time zones have no year for."""
spans_s = st.one_of(
    st.integers(11, 16).map(lambda power: 3.0 * 10**power),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(min_value=-1e15, max_value=1e15),
    st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([1, -1]), st.integers(0, 308)),
    st.sampled_from([0.0, "NaN", "Infinity", "-Infinity", 86_399_999_999_999.0, 86_400_000_000_000.0]),
)
"""Durations, and readings of monotonic clocks."""
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
    moments,
)
queries = st.one_of(
    st.lists(st.tuples(st.sampled_from(QUERY_NAMES), query_values), max_size=4),
    # Most names are known to few addresses: one alone gets further.
    st.tuples(st.tuples(st.sampled_from(QUERY_NAMES), query_values)).map(list),
    st.tuples(st.tuples(st.sampled_from(["submitted_after", "submitted_before"]), moments)).map(list),
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


TIMES = ("at", "started_at")
"""Fields of events that hold moments."""
SPANS = ("duration_s", "started_monotonic_s", "monotonic_s", "training_s", "seconds_to_target")
"""Those that hold seconds."""


@st.composite
def out_of_time(draw: st.DrawFn, batch: Any) -> Any:
    """Events that are right and new, but for some of their times and durations."""
    changed = copy.deepcopy(batch)
    for number, event in enumerate(changed["events"]):
        event["seq"] = draw(st.integers(1_000, 2**40)) + number
    if draw(st.booleans()):
        # What a duration does depends on the window's phase.
        phase, duration_s = draw(st.sampled_from(["setup", "training", "evaluation"])), draw(spans_s)
        for payload in [each["payload"] for each in changed["events"] if each["payload"]["kind"] == "window"]:
            payload.update(phase=phase, duration_s=duration_s)
        return changed
    fields = draw(st.sampled_from([TIMES, SPANS]))
    told = [path for path in places(changed) if _field(path) in fields]
    for place in draw(st.lists(st.sampled_from(told), min_size=1, max_size=4, unique=True)):
        holder = changed
        for key in place[:-1]:
            holder = holder[key]
        if not isinstance(holder[place[-1]], list):
            holder[place[-1]] = draw(moments if _field(place) in TIMES else spans_s)
    return changed


def _field(place: tuple[Any, ...]) -> str:
    """The last name on the way to a place: items of a list are named as their list."""
    return next((part for part in reversed(place) if isinstance(part, str)), "")
