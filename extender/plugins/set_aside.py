"""The annotation that quarantines a node, or exempts it.

The leader writes it; administrators write `never`, or remove it. It is not a taint: running pods stay, and pods that
Kerf does not place may still come.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from extender.plugins.protocol import UnreadableError

SET_ASIDE: Final = "kerf.dev/set-aside"
"""JSON: see `Note`; or `never`."""
NEVER: Final = "never"
MAX_TIMES: Final = 32
_MAX_CHARS: Final = 1024

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**34)]
_Text = Annotated[str, msgspec.Meta(max_length=160)]


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a node is quarantined, and for how long."""

    pods: _Count
    """Number of pods that failed on it soon after their start."""
    namespaces: _Count
    """Number of their namespaces."""
    since: _Seconds
    """Unix time at which the quarantine or the trial began."""
    until: _Seconds
    """Unix time at which the node takes pods again."""
    times: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMES)] = 1
    """Quarantines in a row, without a pod that ran well in between."""
    boot: _Text = ""
    """Boot ID of the node; if it differs from the current one, the node has rebooted since."""
    trial: bool = False
    """Whether the node takes pods on trial: one failure in each of as many namespaces quarantines it again."""


_decoder: Final = msgspec.json.Decoder(Note)


def read_note(annotations: Mapping[str, str]) -> Note | None:
    """Return a node's note, None if there is none or it is `never`. Raises UnreadableError."""
    text = annotations.get(SET_ASIDE, "").strip()
    if not text or text.lower() == NEVER:
        return None
    try:
        if len(text) > _MAX_CHARS:
            raise UnreadableError(f"{len(text)} characters, more than {_MAX_CHARS}")
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError, UnreadableError) as error:
        raise UnreadableError(f'{SET_ASIDE} is ignored: write "{NEVER}", or remove it: {str(error)[:200]}') from None


def num_failed(annotations: Mapping[str, str]) -> int:
    """Return the failed pods of a quarantined node; 0 if it takes pods. Raises UnreadableError."""
    note = read_note(annotations)
    return 0 if note is None or note.trial else note.pods


def is_exempt(annotations: Mapping[str, str]) -> bool:
    """Whether Kerf must not quarantine a node: it has `never`, or a note that can't be read."""
    try:
        return bool(annotations.get(SET_ASIDE, "").strip()) and read_note(annotations) is None
    except UnreadableError:
        return True


def text_of(note: Note) -> str:
    """Return a note's annotation value."""
    return msgspec.json.encode(note).decode()
