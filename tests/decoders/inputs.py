"""Bytes that nobody sends: drawn blindly, or made from what somebody does send."""

from __future__ import annotations

from random import Random

NASTY = (
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x40\x00\x00\x00",
    b"\x00\x00\x00\x01",
    b"\x00\x00\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x00\x01",
    b"\xff\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
)
_SIZE = 1 << 16
_POOL = 20_000


class Blind:
    """Slices of blocks of random bytes: even ones, sparse ones among zeros, small numbers, nasty ones.

    A pool of slices serves many decoders and is drawn anew now and then: drawing costs more than decoding.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._pool: list[bytes] = []
        self.refill()

    def refill(self) -> None:
        """Draw a new pool."""
        rng, random = self._rng, self._rng.random
        even = rng.randbytes(_SIZE)
        sparse = bytearray(_SIZE)
        for _ in range(_SIZE // 12):
            sparse[int(random() * _SIZE)] = int(random() * 256)
        small = bytes(byte & 3 if place % 4 == 3 else 0 for place, byte in enumerate(even))
        nasty = b"".join(rng.choices(NASTY, k=_SIZE // 2))[:_SIZE]
        self._pool = []
        for block in (even, bytes(sparse), small, nasty):
            for _ in range(_POOL // 4):
                place = int(random() * (_SIZE - 512))
                self._pool.append(block[place : place + int(random() * random() * 400)])

    def take(self, count: int) -> list[bytes]:
        """Some inputs of up to a few hundred bytes."""
        return self._rng.choices(self._pool, k=count)


def mutated(rng: Random, seeds: tuple[bytes, ...]) -> bytes:
    """A valid input with a few things changed."""
    data = bytearray(rng.choice(seeds))
    for _ in range(1 + int(rng.expovariate(0.7))):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if place < len(data):
                data[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(data):
                data[place] = rng.randrange(256)
            case 2:
                nasty = rng.choice(NASTY)
                data[place : place + len(nasty)] = nasty
            case 3:
                del data[place : place + 1 + int(rng.expovariate(0.2))]
            case 4:
                data[place:place] = rng.choice(NASTY)
            case 5:
                other = rng.choice(seeds)
                start = rng.randrange(len(other) + 1)
                data[place:] = other[start:]
            case _:
                del data[place:]
    return bytes(data)
