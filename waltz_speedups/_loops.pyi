from collections.abc import Callable
from typing import Any

REFERENCES: dict[str, Callable[..., Any]]

def __getattr__(name: str) -> Any: ...
