"""The engine's process from outside: answers, errors, silence and death, with a stand-in for the engine."""

import time

import pytest

from kvtier.demo.engine_process import EngineFailed, EngineProcess

STAND_IN = """
import os, sys, time
from kvtier.demo.engine_child import EngineChild, serve

class StandIn(EngineChild):
    def add(self, a, b):
        return a + b
    def fail(self):
        raise RuntimeError("on purpose")
    def hang(self):
        print("about to hang", flush=True)
        time.sleep(60)
    def die(self):
        os._exit(3)

serve(StandIn(), int(sys.argv[1]))
"""


@pytest.fixture
def process(tmp_path):
    with EngineProcess(tmp_path / "log", address=None, program=["-c", STAND_IN]) as running:
        yield running


def test_answers_and_errors(process):
    assert process.call("add", a=1, b=2) == 3
    with pytest.raises(EngineFailed, match="on purpose"):
        process.call("fail")
    assert process.call("add", a=3, b=4) == 7  # an error is an answer
    process.close()
    assert process.process.returncode == 0


def test_a_silent_engine_is_killed_and_its_log_shown(process):
    process.send("hang")
    began = time.monotonic()
    with pytest.raises(EngineFailed, match=r"no answer in 1 s\n.*about to hang"):
        process.receive(deadline_s=1.0)
    assert time.monotonic() - began < 15
    assert process.process.returncode == -9


def test_a_dead_engine_is_noticed_at_once(process):
    with pytest.raises(EngineFailed, match="die"):
        process.call("die")
    assert process.process.returncode == 3
