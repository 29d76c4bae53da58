"""What goes wrong before there is a session."""


class SparkCannotStart(Exception):
    """Why there is no Spark session, in one sentence with the remedy."""
