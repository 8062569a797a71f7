"""Requests with parts overwritten, removed or garbled."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

# Replacements for values in a request.
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["0", "-1", "4k", "1e3", "500m", "1e308", "9" * 400, "NaN", "16Gi", "(", "a100", "spread"]),
)


NUMBERS = st.one_of(st.integers(), st.floats())


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from places(child, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, valid: dict[str, Any]) -> bytes:
    """A valid request with up to three places overwritten or removed, and perhaps some bytes changed."""
    body = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(list(places(body)) or [("Pod",)]))
        holder = body
        for key in parents:
            holder = holder[key]
        if draw(st.booleans()):
            holder[last] = draw(VALUES)
        else:
            del holder[last]
    content = bytearray(json.dumps(body).encode())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        start = draw(st.integers(0, len(content)))
        content[start : start + draw(st.integers(0, 20))] = draw(st.binary(max_size=5))
    return bytes(content)
