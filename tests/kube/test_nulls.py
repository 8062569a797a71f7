"""A null of Go is absent or empty in every structure that decodes what Go writes, for each Kubernetes minor."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import extender
from extender.api import wire
from extender.kube import objects
from extender.kube.decoding import Decoder, _without_nulls, convert
from extender.kube.leadership import Lease
from extender.kube.watches import ListDecoder
from extender.ledger.bound_pods import DemandingPod
from tests.kube import bodies


@cache
def structures() -> list[type[msgspec.Struct]]:
    """All that decode what Go writes: Kubernetes objects, and kube-scheduler's requests."""
    for module in pkgutil.walk_packages(extender.__path__, "extender."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[msgspec.Struct]] = [wire.ExtenderArgs, wire.ExtenderBindingArgs, wire.NodeList]
    kinds: list[type[msgspec.Struct]] = [objects.Object]
    while kinds:
        kind = kinds.pop()
        found.append(kind)
        kinds += kind.__subclasses__()
    return sorted(set(found), key=lambda kind: f"{kind.__module__}.{kind.__name__}")


def of(kind: type[Any]) -> type[Any]:
    """A generic structure is tried with pods."""
    return kind[objects.Pod] if kind is objects.ObjectList else kind


def required(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The smallest JSON from which a structure is decoded."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return {field.encode_name: least_of(field.type) for field in info.fields if field.required}


def least_of(kind: msgspec.inspect.Type) -> Any:
    """The smallest value of a required field."""
    match kind:
        case msgspec.inspect.StructType(cls=cls):
            return required(cls)
        case msgspec.inspect.ListType():
            return []
        case msgspec.inspect.StrType():
            return ""
    return {}


def test_null_is_absent_for_every_field() -> None:
    for kind in structures():
        decoder, least = Decoder(of(kind)), required(kind)
        absent = decoder.decode(json.dumps(least).encode())
        for field in msgspec.structs.fields(kind):
            if not field.required:
                found = getattr(decoder.decode(json.dumps(least | {field.encode_name: None}).encode()), field.name)
                assert found == getattr(absent, field.name) or found in (None, msgspec.Raw(b"null")), (kind, field.name)


def with_one_null(kind: msgspec.inspect.Type, above: frozenset[type] = frozenset()) -> Iterator[Any]:
    """Yield JSON of a type with one null, at every place that can have one."""
    match kind:
        case msgspec.inspect.UnionType(types=types):
            for each in types:
                yield from with_one_null(each, above)
        case msgspec.inspect.StructType(cls=cls, fields=fields) if cls not in above:
            least = required(cls)
            for field in fields:
                if not field.required:
                    yield least | {field.encode_name: None}
                for value in with_one_null(field.type, above | {cls}):
                    yield least | {field.encode_name: value}
        case msgspec.inspect.ListType(item_type=inner):
            if not (isinstance(inner, msgspec.inspect.StructType) and required(inner.cls)):
                yield [None]
            yield from ([value] for value in with_one_null(inner, above))
        case msgspec.inspect.DictType(value_type=inner):
            yield {"key": None}
            yield from ({"key": value} for value in with_one_null(inner, above))


def test_one_null_anywhere_is_decoded() -> None:
    for kind in structures():
        decoder = Decoder(of(kind))
        for value in with_one_null(msgspec.inspect.type_info(of(kind))):
            assert isinstance(decoder.decode(json.dumps(value).encode()), kind), (kind, value)
            assert isinstance(convert(value, of(kind)), kind), (kind, value)


def test_items_are_empty_where_go_has_none() -> None:
    text = b"""{"metadata":{"creationTimestamp":null,"name":"p","labels":{"a":null}},
        "spec":{"containers":[null,{"image":"i","resources":{"limits":{"nvidia.com/gpu":null}}}]}}"""
    pod = Decoder(objects.Pod).decode(text)
    assert (pod.metadata.name, pod.metadata.labels) == ("p", {"a": ""})
    # Places in lists stay: patches name them.
    limited = objects.Container(objects.Resources(limits={"nvidia.com/gpu": 0}), image="i")
    assert pod.spec.containers == [objects.Container(), limited]


def test_other_faults_name_their_place() -> None:
    for text, place in (
        (b'{"metadata":{"creationTimestamp":null,"name":7}}', "$.metadata.name"),
        (b'{"spec":{"containers":[null,{"image":7}]}}', "$.spec.containers[1].image"),
        (b'{"spec":7,"x":null}', "$.spec"),
    ):
        with pytest.raises(msgspec.ValidationError) as decoded:
            Decoder(objects.Pod).decode(text)
        with pytest.raises(msgspec.ValidationError) as converted:
            convert(json.loads(text), objects.Pod)
        assert place in str(decoded.value)
        assert place in str(converted.value)


def test_null_is_no_object_and_absent_in_deep_ones() -> None:
    with pytest.raises(msgspec.DecodeError):
        Decoder(objects.Pod).decode(b"null")
    deep = b"[" * 2_000 + b"]" * 2_000
    assert Decoder(objects.Pod).decode(b'{"metadata":{"name":null,"uid":"u"},"x":%b}' % deep).metadata.uid == "u"


SCALARS = st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner))


@given(JSON)
def test_what_has_no_null_stays_as_it_is(value: Any) -> None:
    text = json.dumps({"metadata": value, "spec": {"containers": [value], "overhead": value}}).encode()
    assert json.loads(_without_nulls(text, objects.Pod)) == json.loads(text)


KINDS: dict[str, list[Callable[[bytes], Any]]] = {
    "Pod": [Decoder(objects.Pod).decode, Decoder(DemandingPod).decode],
    "PodList": [ListDecoder(objects.Pod).decode],
    "Node": [Decoder(objects.Node).decode],
    "Lease": [Decoder(Lease).decode],
    "Status": [Decoder(objects.Status).decode],
    "ExtenderArgs": [wire.read_args],
}


@pytest.mark.parametrize("minor", bodies.MINORS)
def test_what_each_kubernetes_writes_is_decoded(minor: str) -> None:
    for kind, reads in KINDS.items():
        reads_what_kubernetes_writes(minor, kind, reads)


def reads_what_kubernetes_writes(minor: str, kind: str, reads: Sequence[Callable[[bytes], Any]]) -> None:
    """A filled object of a kind and an empty one are decoded, whatever Go leaves out."""
    told = bodies.bodies(minor)
    for read in reads:
        found = read(json.dumps(told["filled"][kind]).encode())
        assert not getattr(found, "unread", ())
        if "Args" not in kind:  # an empty one has no pod
            read(json.dumps(told["empty"][kind]).encode())


def test_the_oldest_write_null_where_the_newest_write_nothing() -> None:
    metadata = {minor: bodies.bodies(minor)["review"]["request"]["object"]["metadata"] for minor in bodies.MINORS}
    with_null = [minor for minor in metadata if "creationTimestamp" in metadata[minor]]
    assert with_null == ["1.29", "1.30", "1.31", "1.32", "1.33"]
