"""What the simulation raises where something does not hold."""


class Violated(AssertionError):
    """An invariant does not hold; its name comes first."""
