"""Clients in Spark tasks: what they send and verify, and what they report.

rows.py   what a task yields
"""
