"""A private key and the certificates that go with it."""

from __future__ import annotations

from waltz_core.base.record import record


@record
class KeyPair:
    """A private key and its certificate chain, as PEM."""

    certificate: bytes
    key: bytes
