import pytest

from tests.harness.ottla import OttlaServer


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker of its own process, which these tests may hurt."""
    server = OttlaServer(
        tmp_path_factory.mktemp("hostile"),
        settings={
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.partitions": "1",
        },
    ).start()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def no_warning_is_logged_that_the_test_does_not_name():
    """Accept all warnings: with real processes and networks, timeouts and retries depend on the machine."""
