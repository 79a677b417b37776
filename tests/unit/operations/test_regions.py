"""What the doctor makes of the root of a proxy."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.unit.operations.views import DAY, cluster, server
from waltz_core.operations.diagnosis import CLOCK_MAX_MS, SETTLE_MS, diagnose, notices
from waltz_core.operations.doors import GatewayView
from waltz_core.operations.page import Console
from waltz_core.operations.view import CertificateView, ClusterView, ServerView
from waltz_core.wire.client_messages import PartitionStatus, ServedState
from waltz_core.wire.shared import AGE
from waltz_core.zookeeper.store_metadata import EMPTY_STORE
from waltz_trio.cli.main import parser_of_noun


def status(partition_id: int, reason: str = "") -> PartitionStatus:
    state = ServedState.OPENING if reason else ServedState.READY
    return PartitionStatus(partition_id, 2, state, 0, -1, 100, reason or None)


def proxy(*reasons: str, **change: Any) -> ServerView:
    states = tuple(status(number, reason) for number, reason in enumerate(reasons or ("", "")))
    figures = {(AGE, number): 1_000.0 * number + 7_000 for number in range(2)}
    return server(1, 0, 1, status=states, figures=figures, connectivity={}, **change)


def region(*servers: ServerView, **change: Any) -> ClusterView:
    """A root with a proxy: nothing is assigned to storage nodes, and nobody has ever recovered anything."""
    return attrs.evolve(
        cluster(),
        proxy_of="payments",
        storages=(),
        maps=EMPTY_STORE,
        partitions=(None, None),
        servers=servers,
        **change,
    )


def test_a_proxy_that_hears_its_cluster_is_well_though_it_has_no_storage_nodes() -> None:
    assert diagnose(region(proxy())) == ()


AWAY = "upstream: waiting"


@pytest.mark.parametrize(
    ("view", "cause", "texts", "command"),
    [
        (region(), "no-proxy", ["'payments'"], "waltz proxy run -c PROXY.yml"),
        (region(proxy(), proxy()), "two-proxies", ["2 proxies"], "root of its own"),
        (
            region(attrs.evolve(proxy(), problem="refused", partitions=None, status=None)),
            "proxy-down",
            ["refused"],
            "waltz proxy run -c PROXY.yml",
        ),
        (
            region(attrs.evolve(proxy(), problem="no answer within 10 s", health=None)),
            "proxy-silent",
            ["answers some questions", "no answer within 10 s"],
            "waltz proxy run -c PROXY.yml",
        ),
        (
            region(proxy(AWAY, AWAY)),
            "upstream-away",
            ["partitions 0-1 of cluster 'payments'", AWAY, "up to 8 s old"],
            "waltz doctor -c UPSTREAM",
        ),
        (region(proxy("", AWAY)), "upstream-away", ["partition 1 "], "proxy.upstream.root"),
        (
            region(attrs.evolve(proxy(AWAY, AWAY), figures={})),
            "upstream-away",
            ["has never heard them"],
            "waltz doctor -c UPSTREAM",
        ),
        (region(proxy(clock_ms=CLOCK_MAX_MS + 1)), "clock-off", ["ahead of"], "set-ntp"),
        (
            region(proxy(), certificates=(CertificateView("p:1", "CN=p", DAY),)),
            "certificate-expired",
            ["p:1"],
            "replace",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_mends_it(
    view: ClusterView, cause: str, texts: list[str], command: str
) -> None:
    if cause == "certificate-expired":
        view = attrs.evolve(view, now_ms=2 * DAY)
    (finding,) = diagnose(view)
    assert finding.cause == cause
    assert [text for text in texts if text not in finding.evidence] == []
    assert command in finding.command


def test_what_a_proxy_mends_by_itself_is_given_time() -> None:
    assert SETTLE_MS > 0
    assert [finding.settles for finding in diagnose(region(proxy(AWAY, AWAY)))] == [True]
    twice = region(proxy(), proxy())  # one that was killed and started again, until its old session ends
    assert [finding.settles for finding in diagnose(twice)] == [True]
    assert [finding.settles for finding in diagnose(region())] == [False]


def test_a_certificate_that_has_ended_explains_a_proxy_that_does_not_answer() -> None:
    silent = attrs.evolve(proxy(), problem="its certificate", partitions=None, status=None)
    ended = CertificateView(silent.name, "CN=p", DAY)
    (root,) = diagnose(attrs.evolve(region(silent, certificates=(ended,)), now_ms=2 * DAY))
    assert (root.cause, [finding.cause for finding in root.follows]) == ("certificate-expired", ["proxy-down"])


def test_gateways_are_looked_at_beside_a_proxy_too() -> None:
    (root,) = diagnose(region(proxy(), gateways=(GatewayView("g:1", "refused"),)))
    assert root.cause == "gateway-down"


def test_the_advised_command_is_one_that_there_is() -> None:
    parser_of_noun("proxy").parse_args(["run", "-c", "PROXY.yml"])  # it ends the process otherwise


def test_a_proxy_that_is_silent_explains_what_it_does_not_say() -> None:
    (finding,) = diagnose(region(attrs.evolve(proxy(AWAY, AWAY), problem="timeout", partitions=None)))
    assert [consequence.cause for consequence in finding.follows] == ["upstream-away"]


def test_notices_and_pages_call_it_a_proxy() -> None:
    view = region(proxy(AWAY, AWAY, access_level=1))
    assert notices(view)[0].evidence.startswith("proxy ")
    page = Console("/region").look(view, 1)
    (row,) = page["servers"]
    assert (row["kind"], row["level"], row["state"]) == ("proxy", "warn", "cut off from its cluster")
    assert {each["level"] for each in page["partitions"]} == {"warn"}
    assert {each["waits_for"] for each in page["partitions"]} == {AWAY}
    well = Console("/region").look(region(proxy()), 1)
    assert {each["level"] for kind in ("servers", "partitions") for each in well[kind]} == {"ok"}
