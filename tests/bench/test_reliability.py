"""`kvtier bench reliability`: nothing but misses; and what it counts would be seen."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvtier import Client
from kvtier.bench import table
from kvtier.bench.reliability import engine_faults
from kvtier.bench.reliability.crew import EngineEnded
from kvtier.bench.reliability.engine import CHUNK_BYTES
from kvtier.bench.reliability.stand import stand
from kvtier.bench.reliability.tally import HUNG_MS, Tally
from kvtier.bench.reliability.waits import Waits
from kvtier.bench.report import Result
from kvtier.errors import InvalidArgument

COMMAND = [sys.executable, "-c", "from kvtier.cli.main import main; main()", "bench", "reliability"]
LONGEST_MS = 150.0  # 50 ms is the promise; a test's machine is busy with other tests


@pytest.mark.slow
def test_nothing_but_misses(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n<!-- begin kvtier bench reliability -->\n<!-- end kvtier bench reliability -->\n"
    )
    options = ["--quick", "--json", "--write", str(page)]
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert len(results) == 16 * 8
    for result in results:
        column = result["case"].rpartition(": ")[2]
        if column in ("wrong bytes", "hung calls", "leaked", "failed requests"):
            assert result["value"] == 0, result
        if column == "longest wait":
            assert result["value"] <= LONGEST_MS, result
        if column in ("injected", "chunks compared", "first hit"):
            assert result["value"] > 0, result
    (refused,) = [
        item for item in results if item["case"] == "storage: flipped bits in every segment: injected"
    ]
    assert int(refused["reference"].split()[0]) > 0, "no flipped bit was ever met"
    assert page.read_text().count("\n| ") == 2 + 16
    assert page.read_text().startswith("Before.\n")


# ---- what it counts would be seen ----


def test_wrong_bytes_would_be_counted() -> None:
    with stand(1) as trial:
        trial.begin()
        with (trial.daemon.shm_dir / "arena.data").open("r+b") as arena:
            for _ in range(20):
                arena.seek(0)
                arena.write(bytes(16 << 20))  # beneath everybody
                time.sleep(0.01)  # so that engines store anew in between, and load some of it
        trial.hit_since(time.monotonic())
        assert trial.finish("planted").tally.wrong > 0


def test_a_leak_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtier.bench.reliability.stand.SETTLE_S", 1.0)
    with stand(1) as trial:
        trial.begin()
        with Client.connect(trial.daemon.address, name="keeps", deadline_ms=5000) as client:
            ns = client.namespace({"keeps": 1}, CHUNK_BYTES)
            with ns.reserve([bytes(16)]):
                assert trial.finish("planted").leaked >= 3  # its session, lease, slot, descriptors


def test_a_wait_would_be_counted_and_a_queue_for_a_core_would_not() -> None:
    tally = Tally()
    waits = Waits(tally)
    with waits.timed("sleeps"):
        threading.Event().wait(1.2 * HUNG_MS / 1000)
    assert (tally.hung, tally.longest_call, tally.calls) == (1, "sleeps", 1)
    assert tally.longest_ms == pytest.approx(tally.longest_wall_ms, abs=100)


def test_an_engine_that_fails_would_be_counted() -> None:
    with stand(1) as trial:
        trial.begin()
        trial.crew.staying[0].kill()
        with pytest.raises(EngineEnded, match="has ended"):
            trial.hit_since(time.monotonic())
        tally = trial.finish("planted").tally
        assert tally.failed == 1
        assert tally.why == "an engine process has ended (-9)"


def test_tallies_add_up() -> None:
    total = Tally(requests=1, longest_ms=2.0, longest_call="lease", why="")
    total.add(Tally(requests=2, longest_ms=3.0, longest_call="reserve", why="x"))
    total.add(Tally(requests=4, longest_ms=1.0, longest_call="lookup", why="y"))
    assert (total.requests, total.longest_ms, total.longest_call, total.why) == (7, 3.0, "reserve", "x")


def test_a_victim_is_killed_at_its_work() -> None:
    outcome = engine_faults.killed("store", 2, seed=5)
    assert outcome.injected == 2
    assert outcome.leaked == outcome.tally.wrong == outcome.tally.failed == 0


# ---- the table ----


def test_a_table_needs_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(InvalidArgument, match="begin kvtier bench x"):
        table.write(page, "x", [], {}, "kvtier bench x")
    assert page.read_text() == "nothing\n"


def test_rows_and_columns() -> None:
    from kvtier.bench.report import Budget

    results = [Result("a: b: n", 3, "ms", "", 1.0), Result("a: b: m", 1, "", "", 1.0, Budget(0))]
    assert table.rows(results)[2:] == ["| a: b | 3 ms | **1** |"]
