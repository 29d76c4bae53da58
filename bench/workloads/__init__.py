"""Workloads: what is produced and consumed, in which phases, and what happens meanwhile. TOML files, read into `model`.

model.py   the shapes of a workload
"""
