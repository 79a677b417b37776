"""What the doctor and the console make of gateways that tools were told of."""

from __future__ import annotations

import attrs

from tests.unit.operations.views import cluster
from waltz_core.operations.diagnosis import diagnose
from waltz_core.operations.doors import GatewayView
from waltz_core.operations.page import Console

HOME = "waltz://127.0.0.1:7801"


def test_a_gateway_that_serves_is_no_finding() -> None:
    view = attrs.evolve(cluster(), gateways=(GatewayView("g:1"),))
    assert diagnose(view) == ()
    assert [row["level"] for row in Console("/c").look(view, 1)["gateways"]] == ["ok"]


def test_a_topic_that_cannot_be_is_named_with_what_to_correct() -> None:
    view = attrs.evolve(cluster(), gateways=(GatewayView("g:1", topics={"topic pay": "it has 4"}),))
    (found,) = diagnose(view)
    assert (found.cause, found.settles) == ("gateway-topic-wrong", False)
    assert found.evidence == "the gateway at g:1 cannot serve all of topic pay: it has 4"
    assert "gateway.topics" in found.command
    (row,) = Console("/c").look(view, 1)["gateways"]
    assert (row["level"], row["state"], row["trouble"]) == ("warn", "misses partitions", ["topic pay: it has 4"])


def test_one_that_is_silent_or_cut_off_is_named_with_what_to_look_at() -> None:
    gateways = GatewayView("g:1", "refused"), GatewayView("g:2", away={HOME: "no answer within 5 s"})
    view = attrs.evolve(cluster(), gateways=gateways)
    silent, cut = diagnose(view)
    assert (silent.cause, cut.cause) == ("gateway-down", "gateway-cut-off")
    assert "g:1" in silent.evidence
    assert "refused" in silent.evidence
    assert silent.command.startswith("waltz gateway run -c GATEWAY.yml")
    assert f"{HOME}: no answer within 5 s" in cut.evidence
    assert (silent.settles, cut.settles) == (False, True)
    rows = Console("/c").look(view, 1)["gateways"]
    assert [(row["level"], row["state"]) for row in rows] == [("bad", "does not answer"), ("warn", "misses a cluster")]
    assert rows[1]["trouble"] == [f"{HOME}: no answer within 5 s"]
