"""Certificates of Kerf's own making: when others are needed, what they are, and what anybody may have put there."""

import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from extender.parts.certificates.own import CertificateSpec, fault, renewed
from tests.api.certificates import Authority

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
WEBHOOK = CertificateSpec(["kerf-webhook.gpu.svc"], "", 90 * DAY)
SERVICE = CertificateSpec(["kerf.gpu.svc", "10.0.0.7"], "kube-scheduler", 90 * DAY)
NAMES = ["ca.crt", "ca.key", "tls.crt", "tls.key", "client.crt", "client.key"]


def leaf(data: dict[str, bytes], name: str = "tls.crt") -> x509.Certificate:
    return x509.load_pem_x509_certificate(data[name])


def authorities(data: dict[str, bytes]) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(data["ca.crt"])


def test_new_ones_are_for_their_hosts_and_good_until_a_third_is_left() -> None:
    for wanted, made in ((WEBHOOK, NAMES[:4]), (SERVICE, NAMES)):
        assert fault({}, wanted, NOW) == "ca.crt is missing"
        data = renewed({}, wanted, NOW)
        assert set(data) == set(made)
        leaf(data).verify_directly_issued_by(authorities(data)[0])
        names = leaf(data).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        told = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
        assert sorted(told) == sorted(wanted.hosts)
        assert fault(data, wanted, NOW) == fault(data, wanted, NOW + 59 * DAY) == ""
        assert fault(data, wanted, NOW + 61 * DAY) == "tls.crt is valid until 2027-02-22 12:00"


def test_each_side_s_certificate_is_good_for_its_side_alone() -> None:
    data = renewed({}, SERVICE, NOW)
    usages = {
        name: list(leaf(data, name).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        for name in ("tls.crt", "client.crt")
    }
    assert usages == {"tls.crt": [ExtendedKeyUsageOID.SERVER_AUTH], "client.crt": [ExtendedKeyUsageOID.CLIENT_AUTH]}
    assert leaf(data, "client.crt").subject.rfc4514_string() == "CN=kube-scheduler"
    signs = leaf(data).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert signs is False


def test_a_renewal_leaves_the_ca_and_the_client_s_as_they_are() -> None:
    """kube-scheduler's files are copied by hand: nobody wants to do that every month."""
    first = renewed({}, SERVICE, NOW)
    then = NOW + 61 * DAY
    second = first | renewed(first, SERVICE, then)
    assert {name for name in NAMES if first[name] != second[name]} == {"tls.crt", "tls.key"}
    assert fault(second, SERVICE, then) == ""


def test_another_host_is_another_certificate_by_the_same_ca() -> None:
    first = renewed({}, SERVICE, NOW)
    more = CertificateSpec([*SERVICE.hosts, "10.0.0.8"], SERVICE.client, SERVICE.valid)
    assert fault(first, more, NOW) == "tls.crt is not for 10.0.0.8"
    second = first | renewed(first, more, NOW)
    assert (second["ca.crt"], fault(second, more, NOW)) == (first["ca.crt"], "")


def test_a_ca_near_its_end_is_followed_by_another_while_both_are_trusted() -> None:
    first = renewed({}, SERVICE, NOW)
    late = NOW + 3290 * DAY  # of 3650: less than a tenth is left
    assert "ca.crt is valid until" in fault(first, SERVICE, late)
    second = first | renewed(first, SERVICE, late)
    new, old = authorities(second)
    assert old == authorities(first)[0]
    leaf(second).verify_directly_issued_by(new)
    leaf(second, "client.crt").verify_directly_issued_by(new)
    third = second | renewed(second, SERVICE, late + 3290 * DAY)
    assert len(authorities(third)) == 2  # the oldest is not dragged along forever


def test_what_an_earlier_chart_made_is_used_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    """By Helm: RSA, without the CA's key. kube-scheduler has its files, and another CA would lock it out."""
    authority = Authority(tmp_path, "kerf-ca")  # valid for two days from now on
    certificate, key = authority.issue("kerf")
    data = {
        "ca.crt": authority.certificate.read_bytes(),
        "tls.crt": certificate.read_bytes(),
        "tls.key": key.read_bytes(),
    }
    now = datetime.now(UTC)
    assert fault(data, SERVICE, now) == ""
    late = now + timedelta(days=1.5)
    assert "tls.crt is valid until" in fault(data, SERVICE, late)
    after = data | renewed(data, SERVICE, late)
    assert fault(after, SERVICE, late) == ""
    assert authorities(after)[1] == authorities(data)[0]  # who has a certificate of the old CA gets in still


def test_what_is_made_is_what_python_and_the_api_server_verify(tmp_path: Path) -> None:
    data = renewed({}, SERVICE, datetime.now(UTC))
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server.load_verify_locations(tmp_path / "ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    client.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    one, other = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
    asking = client.wrap_bio(one[0], one[1], server_hostname="kerf.gpu.svc")
    answering = server.wrap_bio(other[0], other[1], server_side=True)
    for _ in range(6):
        for side in (asking, answering):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            other[0].write(one[1].read())
            one[0].write(other[1].read())
    assert answering.getpeercert(binary_form=True) is not None


def swapped(data: dict[str, bytes], other: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return data | {name: other[name] for name in names}


MINE, THEIRS = (renewed({}, SERVICE, NOW) for _ in range(2))
RSA = rsa.generate_private_key(65537, 2048).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
NO_PEM = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
LEAF_AS_CA = MINE | {"ca.crt": MINE["tls.crt"], "ca.key": MINE["tls.key"]}
HOSTILE = (
    (swapped(MINE, THEIRS, "tls.crt"), "tls.key is not the key of tls.crt"),
    (swapped(MINE, THEIRS, "tls.crt", "tls.key"), "tls.crt is not signed by ca.crt"),
    (swapped(MINE, THEIRS, "ca.crt"), "ca.key is not the key of ca.crt"),
    (swapped(MINE, THEIRS, "client.crt", "client.key"), "client.crt is not signed by ca.crt"),
    (MINE | {"ca.crt": MINE["ca.crt"] * 3}, "ca.crt holds 3 certificates"),
    (LEAF_AS_CA, "CA"),
    (MINE | {"tls.crt": NO_PEM}, "can't be read"),
    (MINE | {"tls.key": b""}, "tls.key is missing"),
    (MINE | {"tls.crt": b"x" * 70_000}, "tls.crt is too large"),
    (MINE | {"ca.key": RSA}, "was not issued by Kerf"),  # a key for another use
)


def test_what_does_not_go_together_is_made_again() -> None:
    for data, told in HOSTILE:
        assert told in fault(data, SERVICE, NOW)
        after = data | renewed(data, SERVICE, NOW)
        assert fault(after, SERVICE, NOW) == ""


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=200)))
def test_anything_at_all_is_made_good(junk: dict[str, bytes]) -> None:
    data = MINE | junk
    if fault(data, SERVICE, NOW):
        assert fault(data | renewed(data, SERVICE, NOW), SERVICE, NOW) == ""
