"""The versions of each codec that 0.13.2 offers when it greets."""

from __future__ import annotations

CLIENT = range(5)
STORAGE = range(1)
ADMIN = range(1)
