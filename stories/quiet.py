"""Silence of the logs: what brokers log while a story provokes them is not printed."""

import logging


def quiet() -> None:
    """Print no log lines of the components that stories play."""
    logger = logging.getLogger("ottla")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
