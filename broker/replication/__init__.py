"""Replication: how a partition's replicas become and stay the same log (KIP-101, 279, 320, 497, 595, 903, 966, 392).

follower.py          one follower: what it asks its leader, and what it does with the answers (pure)
follower_session.py  its end of an incremental fetch session (pure)
fetcher.py           asks one leader for all partitions that it is given, and carries out what followers decide
fetchers.py          which fetcher follows which partition
leadership.py        what a leader knows of its followers: ISR, high watermark (pure)
isr_changes.py       asks the controller for other ISRs
replica_selector.py  which replica a consumer should read from (KIP-392)
throttles.py         rates of replication (KIP-73)
"""
