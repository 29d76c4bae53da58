"""The metadata log and those who decide on it: (state, request) -> (records, response)."""
