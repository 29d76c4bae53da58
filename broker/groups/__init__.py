"""Group coordinator: consumer groups of the classic protocol, and committed offsets.

| module | content |
|---|---|
| `group_state` | the states of a group and their transitions (ClassicGroupState) |
| `group` | a group (ClassicGroup): its members, generation and protocols, and the rules of membership |
| `joining` (and leaving), `syncing`, `sessions` | the effects of each request, and of timers, on a group |
| `rebalance` | the join phase, which all of them may start or end |
| `storing` | the continuation after a group's record is committed or could not be written |
| `offsets`, `offset_manager` | committed offsets, also of open transactions; requests, expiry (OffsetMetadataManager) |
| `shard` | one partition of `__consumer_offsets`: requests in, records out (GroupCoordinatorShard) |
| `log_state`, `loader`, `resuming` | the replay of a partition (CoordinatorLoaderImpl) |
| `shard_runtime`, `record_writer`, `cleanup`, `timers` | the shell of a shard (CoordinatorContext) |
| `coordinator_runtime` | the shards that this broker leads: loads and unloads them (CoordinatorRuntime) |
| `delayed_join` | JoinGroup and SyncGroup requests that wait for other members |
| `coordinator` | the service: finds a group's shard, maps errors to responses (GroupCoordinatorService) |

Except for the shells everything is synchronous and without a clock: `now_ms` comes in, `actions` come out.
"""
