"""Certificates for tests: a CA, and what it signs."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A CA; everything it makes lies in its folder as PEM."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        unsigned = _builder(self._name, self._name, self._key.public_key(), is_ca=True)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(unsigned.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def issue(
        self, name: str, begins: datetime.datetime | None = None, ends: datetime.datetime | None = None
    ) -> tuple[Path, Path]:
        """Files of a certificate for loopback, for now unless it is for another time, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        unsigned = _builder(_name(name), self._name, key.public_key(), is_ca=False, begins=begins, ends=ends)
        signed = unsigned.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        paths = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        paths[0].write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        paths[1].write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return paths

    def client(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client that trusts this CA alone, with a certificate of its own or none."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


_PEM = serialization.Encoding.PEM


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    is_ca: bool,
    begins: datetime.datetime | None = None,
    ends: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins or now - datetime.timedelta(hours=1))
        .not_valid_after(ends or now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
