"""Rules of replication, as functions of events and time: no I/O, no clock.

KIP-101, 279, 320, 392, 497, 595, 73, 903, 966.

follower.py           the state machine of one follower replica: its requests, and its actions on responses
follower_session.py   the follower's end of an incremental fetch session
leader_state.py       one leader epoch: the followers' progress, the ISR, the high watermark candidate
replica_selector.py   which replica a consumer should read from (KIP-392)
replication_quota.py  rates of replication (KIP-73)

replica_rules.py      where a log has diverged from its leader's, a partition's or the metadata log's
byte_quota.py         a rate of bytes in windows

`broker/replicas` executes what these decide: replica fetchers, ISR changes, log moves.
"""
