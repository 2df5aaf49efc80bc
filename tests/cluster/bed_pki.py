"""Who is who in the test bed: one certificate authority, serving certificates, tokens and a kubeconfig per component.

Called by bed.py. Tokens stand for users and service accounts alike, so that RBAC judges each by its own name.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)
Key = ec.EllipticCurvePrivateKey


class Authority:
    """The CA of one run, in `pki/` of its folder: made at first, read again by whoever comes later."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._name = _name("reshape test bed", "")
        self._key = self._read_key() if (folder / "ca.key").exists() else self._create()

    def _read_key(self) -> Key:
        key = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key

    def _create(self) -> Key:
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(self._name, self._key, [x509.BasicConstraints(ca=True, path_length=0)])
        self._write("ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
        self._write_key("ca", self._key)
        return self._key

    def issue(self, file: str, names: list[str], *, user: str = "", group: str = "") -> tuple[Path, Path]:
        """A certificate that serves under these names and signs in as that user."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        extensions: list[x509.ExtensionType] = [x509.BasicConstraints(ca=False, path_length=None), uses]
        if names:
            extensions.append(x509.SubjectAlternativeName([_alternative(name) for name in names]))
        cert = self._sign(_name(user or file, group), key, extensions)
        return self._write(f"{file}.crt", cert.public_bytes(serialization.Encoding.PEM)), self._write_key(file, key)

    def signing_key(self, file: str) -> Path:
        """A private key for service accounts' tokens (RSA: what the controller manager reads)."""
        return self._write_key(file, rsa.generate_private_key(public_exponent=65537, key_size=2048))

    def _sign(self, subject: x509.Name, key: Key, extensions: list[x509.ExtensionType]) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + VALID)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())

    def _write_key(self, file: str, key: Key | rsa.RSAPrivateKey) -> Path:
        form = serialization.PrivateFormat.TraditionalOpenSSL
        plain = serialization.NoEncryption()
        return self._write(f"{file}.key", key.private_bytes(serialization.Encoding.PEM, form, plain))

    def _write(self, file: str, content: bytes) -> Path:
        path = self.folder / file
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


class Tokens:
    """Static tokens that the API server reads when it starts, and the kubeconfig that carries each."""

    def __init__(self, folder: Path, server: str, authority: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "tokens.csv"
        self._folder, self._server, self._authority = folder, server, authority

    def kubeconfig(self, file: str, user: str, *groups: str) -> Path:
        token = secrets.token_hex(16)
        self.file.touch(mode=0o600)
        with self.file.open("a") as lines:
            lines.write(f'{token},{user},{user},"{",".join(groups)}"\n')
        path = self._folder / f"{file}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(self._config(token)))
        return path

    def service_account(self, file: str, namespace: str, name: str) -> Path:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return self.kubeconfig(file, f"system:serviceaccount:{namespace}:{name}", *groups)

    def _config(self, token: str) -> dict[str, object]:
        cluster = {"server": self._server, "certificate-authority": str(self._authority)}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "bed",
            "clusters": [{"name": "bed", "cluster": cluster}],
            "users": [{"name": "bed", "user": {"token": token}}],
            "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "bed"}}],
        }  # fmt: skip


def _name(common: str, group: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, group), *parts] if group else parts)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
