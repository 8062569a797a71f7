"""For how long a certificate is good, and whether it should have been renewed by now: apart from `certificates`, which
needs no library of 10 MB."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from cryptography import x509

_SOON_S: Final = 14 * 86400.0
_SOON_FRAC: Final = 0.25
"""What is left of a certificate that should have been renewed: Kerf makes another with a third left, as cert-manager
does. The alert KerfCertificateEnds has the same bounds."""


@dataclass(frozen=True, slots=True)
class Validity:
    """Of one certificate."""

    begins: datetime
    ends: datetime

    @classmethod
    def of(cls, pem: bytes) -> Self:
        """Of the first certificate of a file. Raises ValueError."""
        certificate = x509.load_pem_x509_certificate(pem)
        return cls(certificate.not_valid_before_utc, certificate.not_valid_after_utc)

    @property
    def valid_s(self) -> float:
        """All of its time, in seconds."""
        return (self.ends - self.begins).total_seconds()

    def left_s(self, now: datetime) -> float:
        """What is left of it, in seconds; below 0 once it has ended."""
        return (self.ends - now).total_seconds()

    def fault(self, now: datetime) -> str:
        """That it ends soon, or has; "" where all is well."""
        left_s = self.left_s(now)
        if left_s >= min(_SOON_S, _SOON_FRAC * self.valid_s):
            return ""
        return f"{'ends' if left_s > 0 else 'has ended'} on {self.ends:%Y-%m-%d %H:%M} UTC, and was not renewed"
