"""Group coordinator: consumer groups of the classic protocol, and committed offsets.

| module | content |
|---|---|
| `group` | a group (Kafka's ClassicGroup): its state, members and rules of membership; has the transitions |
| `joining`, `syncing`, `leaving`, `sessions` | the effects of each request, and of timers, on a group |
| `rebalance` | the join phase, which all of them may start or end |
| `storing` | the continuation after a group's record is committed or could not be written |
| `offsets` | committed offsets: look-up, expiry, open transactions |
| `shard` | the groups of one partition of `__consumer_offsets`: requests in, records and responses out |
| `loader`, `shard_runner`, `timers` | the shell of a shard: replays it, appends its records, runs its timers |
| `coordinator` | the outer shell: follows leadership, finds a group's shard, maps errors to responses |

Except for the shells everything is synchronous and without a clock: `now_ms` comes in, `actions` come out.
"""
