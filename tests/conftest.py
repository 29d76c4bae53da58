"""Fixtures and checks that apply to every test."""

import gc
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from ottla.runtime import stalls

# The time that an example takes depends on the machine: no deadline.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# As a simulation's seeds: a failure is due to a change, and not to a new example.
settings.register_profile("ottla", settings.get_profile("explore"), derandomize=True)
settings.load_profile("ottla")


def pytest_collection_finish() -> None:
    """Garbage collections skip what has been imported and collected: it is never garbage."""
    gc.collect()
    gc.freeze()


#: The package whose log lines operators read; what clients' libraries log is their own affair.
_PACKAGE = "ottla"


class _Warnings(logging.Handler):
    """Keeps what our packages log at WARNING or above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # How long a turn takes depends on the machine and on pytest's heap: it is checked with OTTLA_LOOP_STALL_MS.
        if record.name.partition(".")[0] == _PACKAGE and record.name != stalls.__name__:
            self.lines.append(f"{record.name}: {record.getMessage()}")


@pytest.fixture(autouse=True)
def no_warning_is_logged_that_the_test_does_not_name(request: pytest.FixtureRequest) -> Iterator[None]:
    """An operator is warned of what a test provokes, and of nothing else.

    A test names parts of the warnings that it expects, `@pytest.mark.logs("is corrupt")`, or reads `caplog`.
    """
    warnings = _Warnings()
    logging.getLogger().addHandler(warnings)
    yield
    logging.getLogger().removeHandler(warnings)
    if "caplog" in request.fixturenames:
        return
    named = [part for mark in request.node.iter_markers("logs") for part in mark.args]
    unexpected = [line for line in warnings.lines if not any(part in line for part in named)]
    assert not unexpected, "these warnings are not named:\n" + "\n".join(unexpected)


@pytest.fixture(autouse=True)
def no_turn_of_an_event_loop_takes_too_long() -> Iterator[None]:
    """Check, with OTTLA_LOOP_STALL_MS set, that no broker of this process or of a child blocks its loop for
    longer."""
    if stalls.BOUND_VARIABLE not in os.environ:
        yield
        return
    from tests.harness.stalls import collected

    with collected() as found:
        yield
    assert not found, f"{len(found)} turns took too long:\n" + "\n".join(found)
