import pytest

from kvtier.clock import ManualClock, MonotonicClock


def test_a_manual_clock_stands_still():
    clock = ManualClock(5.0)
    assert clock.now_s() == clock.now_s() == 5.0
    clock.advance(1.5)
    assert clock.now_s() == 6.5
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)


def test_the_real_one_does_not_go_back():
    clock = MonotonicClock()
    assert clock.now_s() <= clock.now_s()
