"""The exception that the simulation raises when an invariant is violated."""


class Violated(AssertionError):
    """An invariant does not hold; its name comes first."""
