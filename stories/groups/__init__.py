"""The classic consumer group: one group, its clients and its log."""
