"""Topics: names for partitions of clusters. A topic counts its partitions from 0, wherever they are.

A partition belongs to one topic at most, since roles are given per topic: through a second name, somebody else could
read it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from waltz_core.base.errors import ConfigError
from waltz_core.base.record import record
from waltz_core.gateway.problems import refused

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
KEY_FIELD = "idempotencyKey"


@record
class Topic:
    """One topic."""

    name: str
    cluster: str  # what the driver opens: an address, or the path of a client's configuration
    partitions: tuple[int, ...]  # of the cluster, in the order of the topic's own numbers
    key_field: str = KEY_FIELD  # of JSON payloads: it carries their idempotency key
    keys_required: bool = False  # an append without a key is refused


@record
class Place:
    """One partition of a topic."""

    topic: Topic
    number: int  # within the topic
    partition: int  # of the cluster


class Topics:
    """All topics of a gateway."""

    __slots__ = ("_topics",)

    def __init__(self, topics: Sequence[Topic]) -> None:
        """Check that each name and each partition stands once.

        Raises:
            ConfigError: it does not, or a name cannot stand in a path.
        """
        self._topics: dict[str, Topic] = {}
        homes: dict[tuple[str, int], str] = {}
        for topic in topics:
            if not _NAME.fullmatch(topic.name):
                raise ConfigError(
                    f"topic {topic.name!r}: a name has 1 to 100 letters, digits, '.', '_' and '-', and begins with a "
                    "letter or digit"
                )
            if topic.name in self._topics:
                raise ConfigError(f"topic {topic.name!r} stands there twice")
            if not topic.partitions:
                raise ConfigError(f"topic {topic.name!r} has no partitions")
            self._topics[topic.name] = topic
            for partition in topic.partitions:
                home = homes.setdefault((topic.cluster, partition), topic.name)
                if home != topic.name or topic.partitions.count(partition) > 1:
                    raise ConfigError(
                        f"partition {partition} of {topic.cluster} belongs to topic {home!r} and again to "
                        f"{topic.name!r}: a partition has one topic, whose roles decide who reads it"
                    )

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._topics)

    @property
    def clusters(self) -> tuple[str, ...]:
        """All clusters, each once."""
        return tuple(dict.fromkeys(topic.cluster for topic in self._topics.values()))

    def topic(self, name: str) -> Topic | None:
        """The topic of a name."""
        return self._topics.get(name)


def place_of(topic: Topic, number: str) -> Place:
    """A partition of a topic by its number in a path.

    Raises:
        RequestError: there is no such partition.
    """
    count = len(topic.partitions)
    if not re.fullmatch(r"[0-9]{1,9}", number) or int(number) >= count:
        raise refused(
            404, "no-such-partition", f"topic {topic.name} has partitions 0 to {count - 1}, not {number[:20]!r}"
        )
    return Place(topic, int(number), topic.partitions[int(number)])
