"""Certificates and keys: made here for a federation on one machine, checked for a real one.

Real ones are made by `certificates.sh` of the project that `fedsoft flower init` writes.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsoft.errors import InputError
from fedsoft.storage.files import LONGEST_TEXT, read_bytes, reason

DAYS = 30  # validity of the certificates


def make_certificates(folder: Path) -> None:
    """Write a certificate authority (ca.pem) and a certificate for this machine's loopback (server.pem, server.key).

    The authority's own key is not kept: nothing else can be signed with it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedsoft loopback authority")])
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(root)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
        )

    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    ca = (
        builder(root, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), server.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(folder / "server.key", server, serialization.PrivateFormat.PKCS8)


def make_key(path: Path) -> None:
    """Write the key pair of a node, `path` and `path.pub`, as `ssh-keygen -t ecdsa -b 384` does."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key of a node; raises InputError for a file that Flower cannot sign with."""
    try:
        key = serialization.load_ssh_private_key(read_bytes(path, LONGEST_TEXT), None)
    except OSError as error:
        raise InputError(f"the key '{path}' cannot be read: {reason(error)}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"the key '{path}' is not allowed: should be a private ECDSA key without a passphrase, as "
            "'./certificates.sh node NAME' of the project writes it"
        )
    return key


def check_certificate(path: Path) -> None:
    """Raise InputError for a file that holds no certificate."""
    try:
        x509.load_pem_x509_certificates(read_bytes(path, LONGEST_TEXT))
    except OSError as error:
        raise InputError(f"the certificate '{path}' cannot be read: {reason(error)}") from None
    except ValueError:
        raise InputError(f"the certificate '{path}' is not allowed: should be the server's ca.pem") from None


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
