"""The protocol between the service and the reader process: commands are lines of JSON, responses are frames.

A frame is the header's and the payload's length (4 bytes each), a JSON header and the raw bytes of one array. Frames
are small, so that reading one does not delay requests.
"""

import struct
from typing import BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from extender.telemetry.readings import Float32s
from extender.telemetry.sources.source import Report

DEVICES_PER_FRAME: Final = 500
_MAX_HEADER_BYTES: Final = 2**22
_MAX_PAYLOAD_BYTES: Final = 2**24

_LENGTH: Final = struct.Struct("<II")
LENGTH_BYTES: Final = _LENGTH.size


class NewDevices(msgspec.Struct, tag="devices"):
    """New hosts and GPUs, in columns; numbering continues from the last frame."""

    first: bool = False
    """Whether numbering restarts at 0."""
    host_names: list[tuple[str, ...]] = []
    instances: list[str] = []
    host_idx: list[int] = []
    numbers: list[int] = []
    uuids: list[str] = []


class GaugeValues(msgspec.Struct, tag="values"):
    """The payload is (D,) float32, NaN where there is no sample."""

    gauge: int


class HostAges(msgspec.Struct, tag="ages"):
    """The payload is (H,) float32 seconds, NaN where unknown."""


class PodSamples(msgspec.Struct, tag="pods"):
    """Namespaces and names; the payload is (P, 2) float32, load and MiB used."""

    namespaces: list[str]
    names: list[str]
    devices: list[list[int]] = []
    """Numbers of each pod's GPUs."""


class Done(msgspec.Struct, tag="done"):
    """The refresh is complete."""

    report: Report


class Failed(msgspec.Struct, tag="failed"):
    """The refresh failed."""

    fault: str


Header = NewDevices | GaugeValues | HostAges | PodSamples | Done | Failed

_header_decoder: Final = msgspec.json.Decoder(Header)
EMPTY: Final = np.empty(0, np.float32)


def write_frame(stream: BinaryIO, header: Header, payload: npt.NDArray[np.floating] = EMPTY) -> None:
    """Write one frame."""
    text = msgspec.json.encode(header)
    content = np.ascontiguousarray(payload, np.float32).tobytes()
    stream.write(_LENGTH.pack(len(text), len(content)) + text)
    stream.write(content)


def read_lengths(content: bytes) -> tuple[int, int]:
    """Lengths of header and payload. Raises ValueError."""
    header, payload = _LENGTH.unpack(content)
    if header > _MAX_HEADER_BYTES or payload > _MAX_PAYLOAD_BYTES or payload % 4:
        raise ValueError(f"a frame of {header} and {payload} bytes")
    return header, payload


def decode_header(text: bytes) -> Header:
    """A header. Raises ValueError."""
    header: Header = _header_decoder.decode(text)
    return header


def decode_payload(content: bytes) -> Float32s:
    """The array of a frame, read-only."""
    return np.frombuffer(content, np.float32)
