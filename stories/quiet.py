"""Silence of the logs: what brokers log while a story provokes them is not printed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Print no log lines of the components that stories play."""
    logger = logging.getLogger("ottla")
    propagates = logger.propagate
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
