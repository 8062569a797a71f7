"""Validates and issues the certificates of the Secret. Pure functions: time is an argument.

A CA signs the server's and the client's certificates. Its key is stored with them, so that certificates are renewed
without distributing a new CA; anyone who can read one key can read the other.
"""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Data = Mapping[str, bytes]

CA, _CA_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "tls.crt", "tls.key"
_CLIENT_CERTIFICATE, _CLIENT_KEY = "client.crt", "client.key"
_PEM: Final = serialization.Encoding.PEM
_MAX_BYTES: Final = 1 << 16
_CA_VALID: Final = timedelta(days=3650)
_CA_LEFT_FRAC: Final = 0.1
_LEFT_FRAC: Final = 1 / 3
"""Fraction of a certificate's validity that is left when it is renewed."""
_BACKDATED: Final = timedelta(minutes=5)
"""Tolerates clock skew."""
_MAX_AUTHORITIES: Final = 2
"""The signing CA and its predecessor."""
_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_SIGNS: Final = x509.KeyUsage(**{usage: usage == "key_cert_sign" for usage in _USAGES})


@dataclass(frozen=True, slots=True)
class CertificateSpec:
    """The certificates to issue."""

    hosts: Sequence[str]
    client: str
    """Common name of the client certificate, "" for none."""
    valid: timedelta
    """Validity of the server's certificate."""


class _FaultError(Exception):
    """Certificates can't be used or are to be renewed."""


def fault(data: Data, wanted: CertificateSpec, now: datetime) -> str:
    """Why the certificates must be replaced, "" if they need not.

    Certificates without the CA's key were issued by something else, such as an earlier chart. They are used until they
    expire, whatever their hosts, as replacing them would need a new CA to be distributed.
    """

    def check() -> None:
        authorities = _authorities(data)
        own = _CA_KEY in data
        if own:
            _check_authority(authorities[0], data, now)
        _check(data, CERTIFICATE, KEY, authorities, now)
        if own:
            _check_hosts(_certificate(data, CERTIFICATE), wanted.hosts)
        if own and wanted.client:
            _check(data, _CLIENT_CERTIFICATE, _CLIENT_KEY, authorities, now)

    return _fault_of(check)


def renewed(data: Data, wanted: CertificateSpec, now: datetime) -> dict[str, bytes]:
    """New certificates by the existing CA, or by a new one if it is invalid; its predecessor stays trusted."""
    issued: dict[str, bytes] = {}
    if _fault_of(lambda: _check_authority(_authorities(data)[0], data, now)):
        authority, key = _new_authority(now)
        issued[_CA_KEY] = _pem(key)
        issued[CA] = b"".join(one.public_bytes(_PEM) for one in [authority, *_still_trusted(data, now)])
    else:
        authority, key = _authorities(data)[0], _key(data, _CA_KEY)
    until = authority.not_valid_after_utc
    issued |= _issue(authority, key, wanted.hosts, "", now, min(now + wanted.valid, until), (CERTIFICATE, KEY))
    if wanted.client and _fault_of(lambda: _check(data, _CLIENT_CERTIFICATE, _CLIENT_KEY, [authority], now)):
        issued |= _issue(authority, key, (), wanted.client, now, until, (_CLIENT_CERTIFICATE, _CLIENT_KEY))
    return issued


def _fault_of(check: Callable[[], None]) -> str:
    """The error of a check, "" for none; any exception counts, as anyone may have written the data."""
    try:
        check()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _new_authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key, name = ec.generate_private_key(ec.SECP256R1()), _name(f"Kerf CA {now:%Y-%m-%d %H:%M}")
    builder = _builder(name, key, now, now + _CA_VALID).issuer_name(name)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_SIGNS, critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _still_trusted(data: Data, now: datetime) -> list[x509.Certificate]:
    """The previous CA, whose certificates are still in use."""
    found: list[x509.Certificate] = []

    def collect() -> None:
        found.extend(one for one in _authorities(data) if one.not_valid_after_utc > now)

    _fault_of(collect)
    return found[: _MAX_AUTHORITIES - 1]


def _authorities(data: Data) -> list[x509.Certificate]:
    """The trusted CAs, the signing one first. Raises _FaultError."""
    try:
        found = x509.load_pem_x509_certificates(_content(data, CA))
    except ValueError as error:
        raise _FaultError(f"{CA} can't be read: {error}") from None
    if len(found) > _MAX_AUTHORITIES:
        raise _FaultError(f"{CA} holds {len(found)} certificates")
    return found


def _check_authority(authority: x509.Certificate, data: Data, now: datetime) -> None:
    """Check that a CA can sign more certificates. Raises _FaultError."""
    if _public(_key(data, _CA_KEY).public_key()) != _public(authority.public_key()):
        raise _FaultError(f"{_CA_KEY} is not the key of {CA}")
    try:
        signs = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        signs = False
    if not signs:
        raise _FaultError(f"{CA} is not a CA")
    _check_time(authority, CA, _CA_LEFT_FRAC, now)


def _check(data: Data, name: str, key: str, authorities: Sequence[x509.Certificate], now: datetime) -> None:
    """Check that a certificate matches its key, is signed by a CA, and need not be renewed. Raises _FaultError."""
    certificate = _certificate(data, name)
    if _public(_key(data, key).public_key()) != _public(certificate.public_key()):
        raise _FaultError(f"{key} is not the key of {name}")
    if not any(_signed_by(certificate, authority) for authority in authorities):
        raise _FaultError(f"{name} is not signed by {CA}")
    _check_time(certificate, name, _LEFT_FRAC, now)


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _check_time(certificate: x509.Certificate, name: str, left_frac: float, now: datetime) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        raise _FaultError(f"{name} is not valid before {begins:%Y-%m-%d %H:%M}")
    if ends - now < (ends - begins) * left_frac:
        raise _FaultError(f"{name} is valid until {ends:%Y-%m-%d %H:%M}")


def _check_hosts(certificate: x509.Certificate, hosts: Sequence[str]) -> None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        raise _FaultError(f"{CERTIFICATE} has no host names") from None
    if missing := [host for host in hosts if _general_name(host) not in names]:
        raise _FaultError(f"{CERTIFICATE} is not for {missing[0]}")


def _certificate(data: Data, name: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_content(data, name))
    except ValueError as error:
        raise _FaultError(f"{name} can't be read: {error}") from None


def _key(data: Data, name: str) -> ec.EllipticCurvePrivateKey:
    """A private key, for the CA an elliptic-curve key. Raises _FaultError."""
    try:
        key = serialization.load_pem_private_key(_content(data, name), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _FaultError(f"{name} can't be read: {error}") from None
    if name == _CA_KEY and not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _FaultError(f"{name} was not issued by Kerf")
    return key  # type: ignore[return-value]


def _content(data: Data, name: str) -> bytes:
    content = data.get(name, b"")
    if not content or len(content) > _MAX_BYTES:
        raise _FaultError(f"{name} is {'too large' if content else 'missing'}")
    return content


def _issue(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    client: str,
    now: datetime,
    until: datetime,
    names: tuple[str, str],
) -> dict[str, bytes]:
    """A server's certificate, or that of `client`, and its key, under their `names` in the Secret."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(client or hosts[0][:64]), key, now, until).issuer_name(authority.subject)
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    if hosts:
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(alternatives, critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())
    return dict(zip(names, (certificate.public_bytes(_PEM), _pem(key)), strict=True))


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - min(_BACKDATED, (until - now) / 10))
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
