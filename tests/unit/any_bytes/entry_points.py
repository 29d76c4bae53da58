"""All entry points (`entry_point`), by their names."""

from tests.unit.any_bytes import of_files, of_messages, of_records, of_tiers
from tests.unit.any_bytes.entry_point import ENTRY_POINTS

__all__ = ["ENTRY_POINTS", "of_files", "of_messages", "of_records", "of_tiers"]
