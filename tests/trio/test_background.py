"""Blocks with background tasks leave the exceptions of their body alone."""

# ruff: noqa: PT012, PT017 - what leaves a block is exactly what is tested
from __future__ import annotations

from typing import NoReturn

import pytest
import trio

from waltz_core.base.errors import ClientClosedError, ClientFailedError
from waltz_trio.base.background import background, background_nursery, only


async def fail(error: Exception) -> NoReturn:
    raise error


async def test_the_bodys_exception_leaves_bare_and_unchanged() -> None:
    raised = ValueError("mine")
    try:
        async with background("it"):
            try:
                raise KeyError("cause")
            except KeyError:
                raise raised  # noqa: B904 - the context is what is tested
    except ValueError as error:
        assert error is raised
        assert isinstance(error.__context__, KeyError)
        assert not hasattr(error, "__notes__")


async def test_nothing_is_left_running() -> None:
    ended = []

    async def task() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    async with background("it") as tasks:
        tasks.start_soon(task)
        await trio.testing.wait_all_tasks_blocked()
    assert ended == [True]


async def test_a_failing_task_ends_the_body_and_is_told_with_its_cause() -> None:
    cause = OSError("broken")
    with pytest.raises(ClientFailedError, match="the thing failed: OSError") as found:
        async with background("the thing") as tasks:
            tasks.start_soon(fail, cause)
            await trio.sleep_forever()
    assert found.value.__cause__ is cause


async def test_a_task_that_fails_with_an_error_of_ours_is_told_as_it_is() -> None:
    error = ClientClosedError("so")
    with pytest.raises(ClientClosedError) as found:
        async with background("it") as tasks:
            tasks.start_soon(fail, error)
            await trio.sleep_forever()
    assert found.value is error


async def test_the_first_failure_counts() -> None:
    with pytest.raises(ClientFailedError, match="first"):
        async with background("it") as tasks:
            tasks.fail(ValueError("first"))
            tasks.fail(ValueError("second"))
            await trio.sleep_forever()


async def test_the_bodys_own_exception_wins_and_notes_the_failure() -> None:
    with pytest.raises(ValueError, match="mine") as found:
        async with background("the thing") as tasks:
            tasks.fail(OSError("broken"))
            raise ValueError("mine")
    assert found.value.__notes__ == ["meanwhile the thing failed: OSError('broken')"]


async def test_groups_of_the_bodys_own_nursery_stay_groups() -> None:
    with pytest.raises(ExceptionGroup) as found:
        async with background("it"), trio.open_nursery() as nursery:
            nursery.start_soon(fail, ValueError("inner"))
    assert len(found.value.exceptions) == 1


async def test_a_cancellation_from_outside_passes() -> None:
    with trio.CancelScope() as scope:
        async with background("outer"), background("inner") as tasks:
            tasks.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_cancellation_while_tasks_are_cleaned_up_passes() -> None:
    async def stubborn() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()

    with trio.CancelScope() as scope:
        async with background("it") as tasks:
            tasks.start_soon(stubborn)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert not scope.cancelled_caught or scope.cancel_called


@pytest.mark.parametrize("tasks", [1, 2])
async def test_an_error_leaves_a_nursery_bare_also_where_somebody_cancels_it_meanwhile(tasks: int) -> None:
    """As a proxy that is ended while its ZooKeeper does not answer: the error must be caught by its type."""
    error = ValueError("mine")
    with trio.CancelScope() as scope:
        with pytest.raises(ValueError, match="mine") as caught:
            async with background_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(trio.sleep_forever)
                try:
                    raise error
                finally:
                    scope.cancel()
        assert caught.value is error
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_a_cancellation_leaves_a_nursery_as_one() -> None:
    with trio.CancelScope() as scope:
        async with background_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_failures_inside_groups_of_one_are_unwrapped() -> None:
    error = ValueError("x")
    assert only(ExceptionGroup("g", [ExceptionGroup("g", [error])])) is error
    pair = ExceptionGroup("g", [error, error])
    assert only(pair) is pair


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), BaseExceptionGroup("two", [SystemExit(3)])])
def test_what_interrupts_a_task_comes_out_of_every_block_around_it(error: BaseException) -> None:
    """The body is cancelled because of it. Had it gone on with that cancellation, the program would end in silence."""
    leaf = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error

    async def interrupted() -> None:
        raise error

    async def main() -> None:
        async with background("outer"), background("inner") as tasks:
            tasks.start_soon(interrupted)
            await trio.sleep_forever()

    with pytest.raises(type(leaf)) as caught:
        trio.run(main)
    assert caught.value is leaf


async def test_a_task_that_is_cancelled_interrupts_nobody() -> None:
    async def cancelled() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)

    with trio.fail_after(20):
        async with background("it") as tasks:
            tasks.start_soon(cancelled)
            await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as scope:
            async with background("it") as tasks:
                tasks.start_soon(trio.sleep_forever)
                await trio.sleep_forever()
        assert scope.cancelled_caught
