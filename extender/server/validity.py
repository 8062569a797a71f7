"""Validity of certificates; apart from `certificates`, which does without the 10 MB library."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from cryptography import x509

_SOON_S: Final = 14 * 86400.0
_SOON_FRAC: Final = 0.25
"""A certificate with less time left should have been renewed: Kerf, as cert-manager, renews with a third left.
The alert KerfCertificateEnds has the same bounds."""


@dataclass(frozen=True, slots=True)
class Validity:
    """The validity of one certificate."""

    begins: datetime
    ends: datetime

    @classmethod
    def of(cls, pem: bytes) -> Self:
        """Return the validity of the first certificate in a PEM file. Raises ValueError."""
        certificate = x509.load_pem_x509_certificate(pem)
        return cls(certificate.not_valid_before_utc, certificate.not_valid_after_utc)

    @property
    def valid_s(self) -> float:
        """Total validity, in seconds."""
        return (self.ends - self.begins).total_seconds()

    def left_s(self, now: datetime) -> float:
        """Remaining validity, in seconds; negative once expired."""
        return (self.ends - now).total_seconds()

    def fault(self, now: datetime) -> str:
        """Return that the certificate ends soon or has ended; "" otherwise."""
        left_s = self.left_s(now)
        if left_s >= min(_SOON_S, _SOON_FRAC * self.valid_s):
            return ""
        return f"{'ends' if left_s > 0 else 'has ended'} on {self.ends:%Y-%m-%d %H:%M} UTC, and was not renewed"
