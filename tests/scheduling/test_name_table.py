"""Rows by name without a dictionary: as the dictionary says, or not at all."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.resources.nodes import NO_GPUS
from extender.scheduling.name_table import NameTable
from tests.core.builders import NodeState, cluster_of

NAMES = st.text(st.sampled_from('ab-1.,"\\ é'), min_size=1, max_size=4)


def named(names: list[str]) -> Cluster:
    """A cluster with these rows, "" for one without a node."""
    row_of = {name: row for row, name in enumerate(names) if name}
    cluster = cluster_of({f"{row}": NodeState(NO_GPUS) for row in range(len(names))})
    return cluster.changed(node_names=tuple(names), row_of=row_of)


def compact(names: list[str]) -> bytes:
    """As Go encodes them."""
    return json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()


@given(st.lists(NAMES | st.just(""), min_size=1, max_size=12, unique=True), st.data())
def test_it_finds_what_a_dictionary_finds_or_nothing(nodes: list[str], data: st.DataObject) -> None:
    cluster, table = named(nodes), NameTable()
    asked = data.draw(st.lists(st.sampled_from(nodes) | NAMES, max_size=8))
    rows = table.rows(cluster, compact(asked))
    plain = all(name in cluster.row_of and not set(name) & set(',"\\') for name in asked)
    if not plain or not asked:
        assert rows is None
    else:
        assert rows is not None
        assert rows.tolist() == [cluster.row_of[name] for name in asked]


def test_text_that_is_not_a_compact_list_is_left_to_the_decoder() -> None:
    cluster, table = named(["a", "b", "2"]), NameTable()
    for text in (
        *(
            b"",
            b"[",
            b"[]",
            b"null",
            b",",
            b",,,,",
            b'["a", "b"]',
            b'[ "a"]',
            b'["a"] ',
            b'"a"',
            b'["a""b"]',
            b'["a",]',
        ),
        *(
            b'["a",]',
            b'["a","b"',
            b'["a"x"b"]',
            b'[["a"]]',
            b'{"a":"b"}',
            b'["a\\u0062"]',
            b'["A"]',
            b"[121]",
            b"[[2]]",
        ),
    ):
        assert table.rows(cluster, text) is None, text
    assert table.rows(cluster, b'["b","a","b"]') is not None


def test_it_follows_the_cluster() -> None:
    table = NameTable()
    many = [f"n{number}" for number in range(1200)]
    for nodes in (["a", "b"], ["b", "", "c"], many, [""]):
        cluster = named(nodes)
        known = [name for name in nodes if name]
        rows = table.rows(cluster, compact(known[::-1]))
        expected = [cluster.row_of[name] for name in known[::-1]] or None
        assert (None if rows is None else rows.tolist()) == expected
        assert table.rows(cluster, compact([*known, "x"])) is None
    assert table.rows(named(many), compact(many * 40)) is None  # too long for it
    assert isinstance(table.rows(named(many), compact(many)), np.ndarray)
