"""A partition whose leader is this broker: appends, acknowledgements, and changes of its ISR (AlterPartition)."""
