"""Certificates for tests: authorities, and what they issue, as PEM files in the test's own folder."""
import datetime
import ipaddress
import pathlib
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    certificate: pathlib.Path
    key: pathlib.Path


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.RFC822Name(name) if "@" in name else x509.DNSName(name)


class Authority:
    """Issues certificates (P-256) and revokes them."""

    def __init__(self, folder, name: str = "Test CA"):
        self.folder, self.name = pathlib.Path(folder), name
        self._stem = name.lower().replace(" ", "-")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._revoked = []
        own = (
            self._builder(name, self._key.public_key(), -1, 30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True
            )
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = self._write(f"{self._stem}.pem", own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *alternatives: str, days: tuple[float, float] = (-1, 30)) -> Pair:
        """A certificate for servers and clients, valid between these days from now; `alternatives` are DNS names,
        addresses or e-mail addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(name, key.public_key(), *days).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        # Strict clients require the identifier of the signing key.
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(n) for n in alternatives]), False)
        issued = builder.sign(self._key, hashes.SHA256())
        stem = f"{self._stem}-{name}-{issued.serial_number:x}"
        return Pair(
            self._write(f"{stem}.pem", issued.public_bytes(serialization.Encoding.PEM)),
            self._write(
                f"{stem}.key",
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                ),
            ),
        )

    def revoke(self, pair: Pair):
        self._revoked.append(x509.load_pem_x509_certificate(pair.certificate.read_bytes()).serial_number)

    def revocations(self) -> pathlib.Path:
        """Writes the revocation list anew."""
        now = datetime.datetime.utcnow()
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(_name(self.name))
            .last_update(now - DAY)
            .next_update(now + 30 * DAY)
        )
        for serial in self._revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - DAY / 2).build()
            )
        listed = builder.sign(self._key, hashes.SHA256())
        return self._write(f"{self._stem}.crl", listed.public_bytes(serialization.Encoding.PEM))

    def _builder(self, name, key, first, last):
        now = datetime.datetime.utcnow()
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + first * DAY)
            .not_valid_after(now + last * DAY)
        )

    def _write(self, name: str, content: bytes) -> pathlib.Path:
        """Replaces the file atomically, as tools that renew certificates do: a watcher never sees half a file."""
        path, new = self.folder / name, self.folder / f"{name}.new"
        new.write_bytes(content)
        if name.endswith(".key"):
            new.chmod(0o600)
        new.rename(path)
        return path
