"""What a port holds of the bodies that callers send, all together."""

from __future__ import annotations


class Bodies:
    """Bytes of all bodies that a port holds."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0

    def take(self, size: int) -> bool:
        """Count bytes before they are kept; False if there is no room for them."""
        if self._size + size > self._size_max:
            return False
        self._size += size
        return True

    def give_back(self, size: int) -> None:
        """They are kept no longer."""
        self._size -= size
