"""Purgatory: where requests wait that cannot be answered yet (org.apache.kafka.server.purgatory)."""
