import asyncio

import pytest
from structlog.testing import capture_logs

from kvtier.daemon import watches


class Failing:
    """A storage tier whose look fails a few times, and that is off then."""

    on = True

    def __init__(self, failures):
        self.looks = 0
        self._failures = failures

    def notice(self):
        self.looks += 1
        if self.looks <= self._failures:
            raise KeyError("codec_tried")
        self.on = False


@pytest.fixture
def pauses(monkeypatch):
    """What was slept, without sleeping."""
    slept_s = []

    async def sleep(seconds):
        slept_s.append(seconds)

    monkeypatch.setattr(watches.asyncio, "sleep", sleep)
    return slept_s


def test_a_watch_that_fails_is_named_in_the_log_and_begins_anew(pauses):
    tier = Failing(3)
    with capture_logs() as lines:
        asyncio.run(watches.kept("storage", lambda: watches.storage(tier)))
    assert tier.looks == 4
    assert pauses == [1.0, 2.0, 4.0, watches.STORAGE_LOOK_S]
    failures = [line for line in lines if line["event"].startswith("a watch has failed")]
    assert [(line["watch"], type(line["exc_info"])) for line in failures] == [("storage", KeyError)] * 3


def test_pauses_end_somewhere(pauses):
    tier = Failing(20)
    asyncio.run(watches.kept("storage", lambda: watches.storage(tier)))
    assert max(pauses) == watches.PAUSE_S_MAX


def test_the_end_of_the_daemon_ends_a_watch():
    async def cancelled():
        task = asyncio.create_task(watches.kept("floors", lambda: watches.floors(None)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
