"""The configuration of a broker."""
