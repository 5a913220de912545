# ruff: noqa: ASYNC220 - the child is made before anything waits
import asyncio
import os
import subprocess
import sys

from kvtier.daemon.deaths import Deaths


def test_each_end_is_reported_once():
    async def main():
        ended, seen = [], asyncio.Event()

        def report(session):
            ended.append(session)
            seen.set()

        deaths = Deaths(report, grace_s=0.05)
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        deaths.watch(1, os.pidfd_open(process.pid))
        deaths.watch(2, None)  # no proof can come: the grace
        async with asyncio.timeout(10):
            await seen.wait()
            assert ended == [2]
            seen.clear()
            process.communicate(b"\n")
            await seen.wait()
        assert ended == [2, 1]
        deaths.close()

    asyncio.run(main())


def test_after_close_nothing_is_reported():
    async def main():
        ended = []
        deaths = Deaths(ended.append, grace_s=0.01)
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        deaths.watch(1, os.pidfd_open(process.pid))
        deaths.watch(2, None)
        assert not deaths.full
        deaths.close()
        process.communicate(b"\n")
        await asyncio.sleep(0.05)
        assert ended == []

    asyncio.run(main())
