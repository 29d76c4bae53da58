"""`ottla tier`: what the remote tier has, compared with its metadata, cleaned up and repaired (KIP-405).

    store --list--> remote/stores/stored_segments.py --+
                                                       +--> comparison.py (verify, orphans), report.py (ls), repair.py
    cluster --read--> remote/known_copies.py ----------+

The store is listed before the metadata is read: a copy's metadata is written before its first object, so
whatever is listed and not in the metadata was not there a moment ago either, but is really unknown.
"""
