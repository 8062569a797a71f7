"""Models as files: a directory of weights and a manifest that says what they are, by which they can be checked.

`weights.safetensors` holds the arrays, `manifest.json` the kind of model, the features that it was trained on, the
hash of the weights, the data and seeds of training, and the evaluation that justifies it. Nothing is loaded that does
not match.
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
"""The kind that `extender.core.valuenet.attention` evaluates: it gives potentials, one for each look at the cluster."""
WEIGHTS: Final = "weights.safetensors"
MANIFEST: Final = "manifest.json"
RELEASED: Final = Path(__file__).parent / "released"
"""The model that comes with this version, where there is one."""
LICENCE: Final = "Apache-2.0"
_LARGEST_BYTES: Final = 64 * 2**20

_WeightsT = TypeVar("_WeightsT")


class ModelError(ValueError):
    """A model that can't be used: names the file and the reason."""


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs allocated on one trace in orders that the model was not trained on, in percent, by seed."""

    trace: str
    seeds: tuple[int, ...]
    kerf: dict[str, tuple[float, ...]]
    """By arrived load in percent."""
    fgd: dict[str, tuple[float, ...]]
    start: dict[str, tuple[float, ...]] = {}
    """Where training began; {} of models that don't say."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a model is."""

    format: int = FORMAT
    kind: str = POTENTIAL
    features_version: int = FEATURES_VERSION
    features: tuple[str, ...] = FEATURES
    sha256: str
    """Of the file of weights."""
    licence: str = LICENCE
    foresight_load: float
    """Load of the pods that its prices were worked out for (`prices.outlook`)."""
    training: dict[str, Any]
    """The configuration, how many generations and episodes: what training again takes."""
    evaluation: tuple[Evaluation, ...]


class Model(msgspec.Struct, frozen=True):
    """A potential and its manifest."""

    potential: Potential
    manifest: Manifest


class Actor(msgspec.Struct, frozen=True):
    """A net that gives potentials, and its manifest."""

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
    """What a model says it is. Raises ModelError."""
    return _manifest(contents(directory / MANIFEST), str(directory))


def model_in(contents: Mapping[str, bytes], where: str) -> Model:
    """A potential in the contents of its files, by name; `where` is how faults call their place. As `read`."""
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
    told: bytes,
    weights: bytes,
    where: str,
    kind: str,
    weights_of: Callable[[dict[str, Floats], int, tuple[str, ...]], _WeightsT],
) -> tuple[_WeightsT, Manifest]:
    """The weights of a model of a kind, from the arrays that its manifest means, and the manifest."""
    manifest = _manifest(told, where)
    if manifest.kind != kind:
        raise ModelError(f"{where}/{MANIFEST}: a model of kind {manifest.kind!r}; expected is kind {kind!r}")
    found = hashlib.sha256(weights).hexdigest()
    if found != manifest.sha256:
        raise ModelError(f"{where}/{WEIGHTS}: SHA-256 {found}, but the manifest says {manifest.sha256}")
    try:
        arrays: dict[str, Floats] = tensors.load(weights)
    except (SafetensorError, KeyError) as error:  # the latter: a type that NumPy lacks
        raise ModelError(f"{where}/{WEIGHTS}: {error}") from None
    try:
        return weights_of(arrays, manifest.features_version, manifest.features), manifest
    except PotentialError as error:
        raise ModelError(f"{where}: {error}") from None


def contents(path: Path) -> bytes:
    """Of one file of a model. Raises ModelError."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ModelError(f"{path}: larger than {_LARGEST_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None


def signature(directory: Path | None) -> object:
    """Another value when the files of a model are others."""
    if directory is None:
        return None
    found: list[object] = [directory]
    for name in (MANIFEST, WEIGHTS):
        try:
            stat = (directory / name).stat()
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError as error:
            found.append(error.errno)
    return tuple(found)
