"""TransferQuota: bytes per second to the remote tier (KIP-956), in threads of a simulation."""

import pytest

from ottla.remote.metrics import ThrottleTime
from ottla.remote.quota import TransferQuota
from ottla.runtime import Pool
from ottla.runtime.simulated import SimulatedRuntime
from ottla.runtime.windows import WindowedMax

MIB = 1024 * 1024


@pytest.fixture
def runtime():
    runtime = SimulatedRuntime(seed=1)
    runtime.interleaving.is_on = True
    runtime.interleaving.operation_s = lambda operation, path: 0.0  # all work is done in threads
    yield runtime
    runtime.simulation.close()


def make_quota(runtime, rate):
    return TransferQuota(
        rate=lambda: rate,
        window_count=11,
        window_ms=1000,
        throttle=ThrottleTime(WindowedMax(runtime.monotonic)),
        runtime=runtime,
    )


def take(runtime, quota, pieces, *, on_wait=lambda wait_s: None):
    async def story():
        def in_thread():
            for piece in pieces:
                quota.take_in_thread(piece, on_wait=on_wait)

        await runtime.run_blocking(in_thread, pool=Pool.REMOTE_COPIES)
        return runtime.monotonic()

    return runtime.run(story())


@pytest.mark.parametrize(
    ("rate", "pieces", "seconds"),
    [
        (10 * MIB, 600, (57, 62)),
        (MIB // 10, 6, (57, 62)),  # a piece is larger than the quota of nine seconds
        (None, 600, (0, 0.1)),
    ],
)
def test_a_rate_is_kept_within_a_segment(runtime, rate, pieces, seconds):
    quota = make_quota(runtime, rate)
    taken_s = take(runtime, quota, [MIB] * pieces)
    assert seconds[0] <= taken_s <= seconds[1]
    assert quota.throttle.total_ms == pytest.approx(taken_s * 1000, abs=1000)


def test_a_transfer_that_is_not_wanted_any_more_stops_waiting(runtime):
    class Stop(Exception):
        pass

    def stop(wait_s):
        if runtime.monotonic() > 5:
            raise Stop

    quota = make_quota(runtime, 1000)
    with pytest.raises(Stop):
        take(runtime, quota, [MIB], on_wait=stop)
    assert 5 < runtime.monotonic() < 5.5
