"""The cryptography of the protocol, all of it from packages: nothing here is our own but the order of calls.

Keys are agreed by X25519 and derived by HKDF, which binds them to the session, the purpose and both parties. Shares
travel under ChaCha20-Poly1305. Masks are the key stream of ChaCha20. Secrets are shared by Flower's `shamir`. Flower's
own generator of masks is not used: it folds every key to 32 bits.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares

SECRET = 31  # bytes of a secret that is shared: with its padding two blocks of Flower's `shamir`
ONCE = bytes(12)  # the nonce of keys that are used once
STREAM = bytes(16)
FIELD = 2**255 - 19  # of X25519


def draw() -> bytes:
    """Return a new secret."""
    return secrets.token_bytes(SECRET)


def digest(*parts: bytes) -> bytes:
    """Return a hash of parts, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def derived(secret: bytes, *about: bytes) -> bytes:
    """Return a key of 32 bytes for one use of a secret."""
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=digest(*about)).derive(secret)


@dataclass(frozen=True)
class KeyPair:
    """A pair of X25519 keys that follows from a secret, so that the secret can be shared in its place."""

    private: X25519PrivateKey

    @staticmethod
    def of(secret: bytes) -> KeyPair:
        return KeyPair(X25519PrivateKey.from_private_bytes(derived(secret, b"x25519")))

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    def agreed(self, other: bytes, *about: bytes) -> bytes:
        """Return the key that both have, for one purpose; raises ValueError for what is no key."""
        return derived(self.private.exchange(X25519PublicKey.from_public_bytes(other)), *about)


def is_key(public: bytes) -> bool:
    """Whether a key can be agreed with this one: it is no key, or one of the few that everybody could guess, if not.

    Nor is another way to write one: two that look different would be the same.
    """
    if int.from_bytes(public, "little") >= FIELD:
        return False
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def sealed(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypt under a key that is used once."""
    return ChaCha20Poly1305(key).encrypt(ONCE, text, about)


def opened(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """Return what was encrypted; None if it was another key, or about something else, or was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(ONCE, sealed, about)
    except InvalidTag:
        return None


def stream(key: bytes, size: int) -> bytes:
    """Return so many bytes that nobody without the key can tell from noise."""
    return Cipher(ChaCha20(key, STREAM), mode=None).encryptor().update(bytes(size))


def shared(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return shares of a secret, of which `threshold` are enough and fewer say nothing."""
    return create_shares(secret, threshold, count)


def joined(shares: list[bytes]) -> bytes | None:
    """Return the secret of shares; None where they have none in common."""
    try:
        return combine_shares(shares)
    except ValueError:
        return None


def signed(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    """Sign by the key of a node, as Flower has it."""
    return key.sign(text, ec.ECDSA(hashes.SHA384()))


def public_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public key of a node, as OpenSSH writes it."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether a text is signed by the node with this public key."""
    try:
        key = load_ssh_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, text, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True
