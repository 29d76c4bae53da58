"""Responses to Fetch and ListOffsets: reads of this broker's replicas, fetch sessions, delayed fetches."""
