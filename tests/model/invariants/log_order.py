"""Sessions and generations never fall along the log."""

from __future__ import annotations

from typing import Any

from tests.model.durable import split
from tests.model.invariants.base import Invariant
from waltz_core.base.ids import ReqId, req_generation


class LogOrder(Invariant):
    """Records of an older session never follow records of a newer one; one server commits in a generation."""

    def __init__(self, observer: Any) -> None:
        super().__init__(observer)
        partitions = observer.cluster.partitions
        self._session = [-1] * partitions
        self._generation = [-1] * partitions
        self._server: dict[tuple[int, int], str] = {}

    def on_commit(self, partition: int, transaction_id: int, body: bytes, server: Any, session: Any) -> None:
        where = f"{partition}/{transaction_id}, committed by {server.name}"
        generation = req_generation(ReqId(split(body)[1]))
        self.require(
            generation >= self._generation[partition],
            f"{where}, was requested in generation {generation}, after one of {self._generation[partition]}",
        )
        self._generation[partition] = generation
        if session is None:
            return
        self.require(
            session.session_id >= self._session[partition],
            f"{where} in session {session.session_id}, after session {self._session[partition]} had committed",
        )
        self._session[partition] = session.session_id
        first = self._server.setdefault((partition, session.generation), server.name)
        self.require(
            first == server.name, f"{where} in generation {session.generation}, in which {first} had committed"
        )
