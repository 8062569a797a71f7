"""Reads and writes models: directories of `weights.safetensors` and `manifest.json`.

The manifest has the kind of model, its features, the hash of the weights, the data and seeds of training, and the
evaluation. A model that does not match its manifest is not loaded.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from safetensors import SafetensorError
from safetensors import numpy as tensors

from extender.core.clusters import Floats
from extender.core.valuenet.attention import Attention, attention_of
from extender.core.valuenet.features import FEATURES, FEATURES_VERSION
from extender.core.valuenet.potentials import Potential, PotentialError, potential_of

FORMAT: Final = 2
POTENTIAL: Final = "potential"
"""The kind of model that `extender.core.valuenet.potentials` evaluates."""
_ATTENTION: Final = "attention"
"""The kind that `extender.core.valuenet.attention` evaluates: it computes a potential from the cluster's state."""
WEIGHTS: Final = "weights.safetensors"
MANIFEST: Final = "manifest.json"
RELEASED: Final = Path(__file__).parent / "released"
"""The released model, if this version has one."""
LICENCE: Final = "Apache-2.0"
_LARGEST_BYTES: Final = 64 * 2**20

_WeightsT = TypeVar("_WeightsT")


class ModelError(ValueError):
    """A model can't be used. The message names the file and the reason."""


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs allocated on one trace, in orders not used in training, in percent by seed."""

    trace: str
    seeds: tuple[int, ...]
    kerf: dict[str, tuple[float, ...]]
    """By arrived load in percent."""
    fgd: dict[str, tuple[float, ...]]
    start: dict[str, tuple[float, ...]] = {}
    """Of the model that training started from; {} if unknown."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of a model."""

    format: int = FORMAT
    kind: str = POTENTIAL
    features_version: int = FEATURES_VERSION
    features: tuple[str, ...] = FEATURES
    sha256: str
    """Hash of the weights' file."""
    licence: str = LICENCE
    foresight_load: float
    """Load of the expected pods that its prices are for (`prices.outlook`)."""
    training: dict[str, Any]
    """The configuration of training, including generations and episodes, to reproduce it."""
    evaluation: tuple[Evaluation, ...]


class Model(msgspec.Struct, frozen=True):
    """A potential and its manifest."""

    potential: Potential
    manifest: Manifest


class Actor(msgspec.Struct, frozen=True):
    """A net that computes potentials, and its manifest."""

    attention: Attention
    manifest: Manifest


def write(
    directory: Path,
    weights: Potential | Attention,
    foresight_load: float,
    training: dict[str, Any],
    evaluation: tuple[Evaluation, ...],
) -> Manifest:
    """Write a model; equal models give equal bytes. The manifest comes last: without it there is no model."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST).unlink(missing_ok=True)
    content = tensors.save(weights._asdict())
    manifest = Manifest(
        kind=_ATTENTION if isinstance(weights, Attention) else POTENTIAL, sha256=hashlib.sha256(content).hexdigest(),
        foresight_load=foresight_load, training=training, evaluation=evaluation,
    )  # fmt: skip
    (directory / WEIGHTS).write_bytes(content)
    (directory / MANIFEST).write_text(json.dumps(msgspec.to_builtins(manifest), indent=2) + "\n", encoding="utf-8")
    return manifest


def read(directory: Path) -> Model:
    """Read a potential. Raises ModelError with the reason when anything about it is not as it must be."""
    return Model(*_loaded(*_contents(directory), str(directory), POTENTIAL, potential_of))


def _read_actor(directory: Path) -> Actor:
    """Read a net that gives potentials, as `read`."""
    return Actor(*_loaded(*_contents(directory), str(directory), _ATTENTION, attention_of))


def read_any(directory: Path) -> Model | Actor:
    """Read a model of either kind, as `read`."""
    return _read_actor(directory) if _read_manifest(directory).kind == _ATTENTION else read(directory)


def _read_manifest(directory: Path) -> Manifest:
    """Read a model's manifest. Raises ModelError."""
    return _manifest(contents(directory / MANIFEST), str(directory))


def model_in(contents: Mapping[str, bytes], where: str) -> Model:
    """A potential from the contents of its files, by name; `where` locates errors. Like `read`."""
    missing = [name for name in (MANIFEST, WEIGHTS) if name not in contents]
    if missing:
        raise ModelError(f"{where}: has no {missing[0]}")
    return Model(*_loaded(contents[MANIFEST], contents[WEIGHTS], where, POTENTIAL, potential_of))


def _manifest(content: bytes, where: str) -> Manifest:
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:  # a ValidationError is a DecodeError
        raise ModelError(f"{where}/{MANIFEST}: {error}") from None
    if manifest.format != FORMAT:
        raise ModelError(f"{where}/{MANIFEST}: format {manifest.format}; this program reads format {FORMAT}")
    return manifest


def _contents(directory: Path) -> tuple[bytes, bytes]:
    return contents(directory / MANIFEST), contents(directory / WEIGHTS)


def _loaded(
    manifest_json: bytes,
    weights: bytes,
    where: str,
    kind: str,
    weights_of: Callable[[dict[str, Floats], int, tuple[str, ...]], _WeightsT],
) -> tuple[_WeightsT, Manifest]:
    """The weights and the manifest of a model of a kind. Raises ModelError."""
    manifest = _manifest(manifest_json, where)
    if manifest.kind != kind:
        raise ModelError(f"{where}/{MANIFEST}: a model of kind {manifest.kind!r}; expected kind {kind!r}")
    sha256 = hashlib.sha256(weights).hexdigest()
    if sha256 != manifest.sha256:
        raise ModelError(f"{where}/{WEIGHTS}: SHA-256 {sha256}, but the manifest says {manifest.sha256}")
    try:
        arrays: dict[str, Floats] = tensors.load(weights)
    except (SafetensorError, KeyError) as error:  # KeyError: a type that NumPy lacks
        raise ModelError(f"{where}/{WEIGHTS}: {error}") from None
    try:
        return weights_of(arrays, manifest.features_version, manifest.features), manifest
    except PotentialError as error:
        raise ModelError(f"{where}: {error}") from None


def contents(path: Path) -> bytes:
    """Read one file of a model. Raises ModelError."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ModelError(f"{path}: larger than {_LARGEST_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None


def signature(directory: Path | None) -> object:
    """A value that changes when a model's files change."""
    if directory is None:
        return None
    parts: list[object] = [directory]
    for name in (MANIFEST, WEIGHTS):
        try:
            stat = (directory / name).stat()
            parts.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError as error:
            parts.append(error.errno)
    return tuple(parts)
