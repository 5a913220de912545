"""The engine must not see a fault of ours."""

import logging

import pytest
from kvtier_connectors.common import guard


class Hooks:
    def __init__(self):
        self.calls = 0

    @guard.guarded(lambda self, value: ("fallback", value))
    def answer(self, value):
        self.calls += 1
        raise RuntimeError(f"broken {value}")

    @guard.guarded(guard.nothing)
    def sound(self, value):
        return value


def test_a_fault_becomes_the_fallback_with_the_same_arguments():
    assert Hooks().answer(3) == ("fallback", 3)


def test_a_sound_hook_is_untouched():
    assert Hooks().sound("x") == "x"
    assert Hooks.sound.__doc__ is None
    assert Hooks.sound.__name__ == "sound"


def test_logged_once_and_counted_always(caplog):
    guard.faults.clear()
    hooks = Hooks()
    with caplog.at_level(logging.ERROR):
        for value in range(5):
            hooks.answer(value)
    assert hooks.calls == 5
    assert guard.fault_count() == 5
    assert len(caplog.records) == 1
    assert "Hooks.answer" in caplog.text
    assert "broken 0" in caplog.text


def test_the_end_of_the_process_is_no_fault():
    @guard.guarded(guard.nothing)
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
