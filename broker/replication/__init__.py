"""Replication: how a partition's replicas become and stay the same log (KIP-101, 279, 320, 497, 595, 903, 966, 392).

follower.py          the state machine of one follower partition: its requests, and its actions on responses (pure)
follower_session.py  the follower's end of an incremental fetch session (pure)
fetcher.py           the replica fetcher: fetches all its partitions from one leader, and executes followers' actions
fetchers.py          the replica fetcher manager: assigns partitions to fetchers
leadership.py        one leader epoch: the followers' progress, the ISR, the high watermark (pure)
isr_changes.py       sends AlterPartition requests to the controller
replica_selector.py  which replica a consumer should read from (KIP-392)
throttles.py         rates of replication (KIP-73)
"""
