"""The metadata log and its snapshots: files, formats, recovery, maintenance. Its decisions are in `controller`."""
