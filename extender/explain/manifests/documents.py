"""Reads manifests, YAML or JSON, with bounded time and memory for any input.

Anchors are expanded, as kubectl does, but count each time they are used: a few lines may expand to gigabytes.

YAML is read as Kubernetes does. Dates are text, and so are base-60 numbers, which YAML 1.2 has dropped. Other numbers
have at most 64 bits: parsing longer ones takes quadratic time, and as keys they could be chosen to collide.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import yaml
from yaml.constructor import ConstructorError

from extender.kube.yaml_faults import yaml_fault

_MAX_CHARS: Final = 100
_LEAST, _MOST = -(2**63), 2**64 - 1
_TAG: Final = "tag:yaml.org,2002:"
_Construct = Callable[[Any, Any], Any]


class _Loader(yaml.CSafeLoader):
    """Loads YAML as JSON data: keys are always strings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are strings, as in JSON."""
        found = super().construct_mapping(node, deep)
        return {key if isinstance(key, str) else _key(key): value for key, value in found.items()}


def _key(key: object) -> str:
    return msgspec.json.encode(key).decode() if key is None or isinstance(key, bool) else str(key)


def _text(loader: _Loader, node: yaml.ScalarNode) -> Any:
    return loader.construct_scalar(node)


def _checked(construct: _Construct, what: str) -> _Construct:
    """A constructor that limits a value's size, and raises ConstructorError for values that don't match their tag."""

    def checked(loader: _Loader, node: yaml.ScalarNode) -> Any:
        text = _text(loader, node)
        if ":" in text:
            return text
        if len(text) > _MAX_CHARS:
            raise ConstructorError(None, None, f"{what} of more than {_MAX_CHARS} characters", node.start_mark)
        try:
            value = construct(loader, node)
        except (ValueError, LookupError):
            raise ConstructorError(None, None, f"{what} that can't be read", node.start_mark) from None
        if isinstance(value, int) and not _LEAST <= value <= _MOST:
            raise ConstructorError(None, None, f"{what} of more than 64 bits", node.start_mark)
        return value

    return checked


_Loader.add_constructor(f"{_TAG}timestamp", _text)
_Loader.add_constructor(f"{_TAG}int", _checked(_Loader.construct_yaml_int, "a number"))
_Loader.add_constructor(f"{_TAG}float", _checked(_Loader.construct_yaml_float, "a number"))
_Loader.add_constructor(f"{_TAG}bool", _checked(_Loader.construct_yaml_bool, "true or false"))


MAX_CHARS: Final = 2**20
_MAX_DOCUMENTS: Final = 1_000
_MAX_SIZE: Final = 2**24
_VALUE_SIZE: Final = 16
"""A text may expand to `_MAX_SIZE` characters, and each value counts `_VALUE_SIZE` in addition to its text."""
_MAX_DEPTH: Final = 100
_MAX_DIRECTIVES: Final = 100
"""Directives take quadratic time, and manifests have none."""
_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


class DocumentError(ValueError):
    """A text, or an object in it, is invalid; says where and why."""


class _TextError(ValueError):
    """A text can't be parsed; says where and why."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object."""

    place: str
    """Where it was given: `document 2`, `objects[0]`."""
    manifest: Any
    text: str = ""
    """The text it was read from; "" if it came as JSON data."""
    number: int = 0
    """Number of the document in the text, from 0."""
    path: str = ""
    """Path within the document, such as `items[3]`."""

    def fault(self, why: str, path: str = "") -> DocumentError:
        """The error for a fault at a path such as `spec.replicas`, with its line if known."""
        whole = ".".join(part for part in (self.path, path) if part)
        line = _line_of(self.text, self.number, whole) if self.text else None
        where = self.place if line is None else f"{self.place}, line {line}"
        return DocumentError(f"{where} ({name_of(self.manifest)}): {f'{path}: ' if path else ''}{why}")


def read_texts(texts: Sequence[str], key: str) -> list[Document]:
    """The objects of the texts under a key of the request. Raises DocumentError."""
    if sum(map(len, texts)) > MAX_CHARS:
        raise DocumentError(f"{key}: more than {MAX_CHARS:,} characters together")
    return [document for number, text in enumerate(texts) for document in read_documents(text, f"{key}[{number}], ")]


def read_documents(text: str, place: str = "") -> list[Document]:
    """The objects of a text, with lists flattened. `place` prefixes their places. Raises DocumentError."""
    if len(text) > MAX_CHARS:
        raise DocumentError(f"{place}more than {MAX_CHARS:,} characters")
    try:
        return _listed(
            Document(f"{place}document {number + 1}", manifest, text, number)
            for number, manifest in enumerate(_loaded(text))
            if manifest is not None
        )
    except _TextError as error:
        raise DocumentError(f"{place}{error}") from None


def _loaded(text: str) -> list[Any]:
    """The documents of a text as data. Raises _TextError."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [msgspec.json.decode(text)]
        except (msgspec.DecodeError, RecursionError):
            pass  # YAML may begin like this as well, and has better error messages
    if sum(line.startswith("%") for line in text.splitlines()) > _MAX_DIRECTIVES:
        raise _TextError(f"more than {_MAX_DIRECTIVES} directives (lines that begin with %)")
    try:
        _check_size(text)
        # Encoding and decoding turns values that are not JSON, such as sets, into JSON.
        found: list[Any] = msgspec.json.decode(msgspec.json.encode(list(yaml.load_all(text, _Loader))))
    except _TextError:
        raise
    except yaml.YAMLError as error:
        raise _TextError(f"{_document_at(text, error)}{yaml_fault(error)}") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _TextError(f"invalid YAML: {str(error)[:200]}") from None
    return found


def given_documents(manifests: Sequence[Any], key: str) -> list[Document]:
    """The objects given as data under a key of the request, with lists flattened. Raises DocumentError."""
    return _listed(Document(f"{key}[{number}]", manifest) for number, manifest in enumerate(manifests))


def _listed(documents: "Sequence[Document] | Iterator[Document]") -> list[Document]:
    """The documents, with each List object replaced by its items. Raises DocumentError."""
    found: list[Document] = []
    waiting = list(documents)[::-1]
    for document in waiting:
        drop_nulls(document.manifest)
    while waiting:
        document = waiting.pop()
        manifest = document.manifest
        if not isinstance(manifest, dict):
            raise document.fault(f"expected an object, not {_called(manifest)}")
        kind = manifest.get("kind")
        if isinstance(kind, str) and kind.endswith("List") and "items" in manifest:
            items = manifest["items"] or []
            if not isinstance(items, list):
                raise document.fault(f"expected a list, not {_called(items)}", "items")
            within = f"{document.path}.items" if document.path else "items"
            inner = [
                replace(document, place=f"{document.place}, items[{number}]", manifest=item, path=f"{within}[{number}]")
                for number, item in enumerate(items)
            ]
            waiting += inner[::-1]
        else:
            found.append(document)
        if len(found) + len(waiting) > _MAX_DOCUMENTS:
            raise DocumentError(f"more than {_MAX_DOCUMENTS:,} objects")
    return found


def drop_nulls(manifest: Any) -> None:
    """Remove null values from an object: Kubernetes treats them as absent, and kubectl writes some."""
    waiting = [manifest]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key in [key for key, one in value.items() if one is None]:
                del value[key]
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def name_of(manifest: Any) -> str:
    """An object in words: `Job default/train`."""
    if not isinstance(manifest, dict):
        return _called(manifest)
    kind, metadata = manifest.get("kind"), manifest.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    words = [text[:80] for text in (kind, name) if isinstance(text, str) and text]
    return " ".join(words) or "no kind"


def _called(value: Any) -> str:
    if value is None:
        return "null"
    return {dict: "an object", list: "a list", str: "text", bool: "true or false"}.get(type(value), "a number")


def _check_size(text: str) -> None:
    """Raise _TextError for a text that is nested too deep or too large with its anchors expanded, or yaml.YAMLError."""
    documents = 0
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = []  # anchor, and the size of what comes before it
    total = 0
    for event in yaml.parse(text, _Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case yaml.DocumentStartEvent():
                documents += 1
                sizes.clear()
            case yaml.AliasEvent():
                if event.anchor not in sizes:  # unknown, or recursive
                    raise _TextError(
                        f"document {documents}, line {line}: *{str(event.anchor)[:80]} is an unknown anchor"
                    )
                total += sizes[event.anchor]
            case yaml.CollectionStartEvent():
                open_.append((event.anchor, total))
                total += _VALUE_SIZE
            case yaml.CollectionEndEvent():
                anchor, before = open_.pop()
                if anchor is not None:
                    sizes[anchor] = total - before
            case yaml.ScalarEvent():
                size = _VALUE_SIZE + len(event.value)
                total += size
                if event.anchor is not None:
                    sizes[event.anchor] = size
        if len(open_) > _MAX_DEPTH:
            raise _TextError(f"document {documents}, line {line}: nested deeper than {_MAX_DEPTH} levels")
        if total > _MAX_SIZE:
            raise _TextError(f"document {documents}, line {line}: too large with its anchors expanded")
        if documents > _MAX_DOCUMENTS:
            raise _TextError(f"more than {_MAX_DOCUMENTS:,} documents")


def _document_at(text: str, error: yaml.YAMLError) -> str:
    """`document 2, `, or "" if an error has no line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return ""
    before = text.splitlines()[: mark.line + 1]
    started = False  # a leading --- does not begin a second document
    number = 1
    for line in before:
        if line.startswith("---") and started:
            number += 1
        started = started or bool(line.strip() and not line.lstrip().startswith("#"))
    return f"document {number}, "


def _line_of(text: str, number: int, path: str) -> int | None:
    """The line of a path in a document, or of its longest existing prefix."""
    try:
        node = next(root for at, root in enumerate(yaml.compose_all(text, _Loader)) if at == number)
    except (yaml.YAMLError, StopIteration, ValueError):
        return None
    line = int(node.start_mark.line)
    for key, index in _STEP.findall(path):
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((at, value) for at, value in node.value if at.value == key), None)
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            found = node.value[int(index)], node.value[int(index)]
        if found is None:
            break
        line, node = int(found[0].start_mark.line), found[1]
    return line + 1
