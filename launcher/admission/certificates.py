"""Makes the webhook's certificate, signed by an authority of its own whose key is thrown away at once.

Promise: no other certificate can be signed with that authority, even with access to our Secrets. The only module that
knows `cryptography`; called by `reshape setup` and `reshape doctor`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from coordinator.errors import Fatal

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

VALID_DAYS = 3 * 365
EARLIER = timedelta(hours=1)  # other machines' clocks may be behind
NOT_INSTALLED = "the package cryptography is not installed here: pip install '.[k8s]' in a checkout of volcano-reshape"


class IssuedCertificate(NamedTuple):
    """A certificate with its key and the authority that signed it, in PEM."""

    authority: str
    certificate: str
    key: str


def make(names: list[str], now: float) -> IssuedCertificate:
    """Return a certificate for these host names, valid from `now` (seconds since 1970) for `VALID_DAYS`."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise Fatal(NOT_INSTALLED) from error
    authority_key, key = _key(), _key()
    issuer, subject = _named("volcano-reshape webhook authority"), _named(names[0])
    authority = _begun(issuer, issuer, authority_key, now).add_extension(x509.BasicConstraints(True, 0), critical=True)
    certificate = _begun(subject, issuer, key, now).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
    )
    return IssuedCertificate(_signed(authority, authority_key), _signed(certificate, authority_key), _written(key))


def days_left(pem: str, now: float) -> float | None:
    """Return the days until the first certificate in the text expires; None if none can be read."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise Fatal(NOT_INSTALLED) from error
    try:
        end = x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    except ValueError:
        return None
    return (end.timestamp() - now) / 86_400


def _named(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _begun(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, now: float) -> x509.CertificateBuilder:
    from cryptography import x509

    today = datetime.fromtimestamp(now, UTC)
    begun = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    begun = begun.serial_number(x509.random_serial_number()).not_valid_before(today - EARLIER)
    return begun.not_valid_after(today + timedelta(days=VALID_DAYS))


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def _written(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
