"""Consumer groups of the classic protocol, and the offsets that groups commit.

| module | what |
|---|---|
| `group` | a group: its state, members and rules of membership; opens with the transitions |
| `joining`, `syncing`, `leaving`, `sessions` | what each request, and time, does to a group |
| `rebalance` | the join phase that all of them may start or end |
| `storing` | what follows when a generation is in the log, or could not be written |
| `offsets` | committed offsets: look-up, expiry, open transactions |
| `shard` | the groups of one partition of `__consumer_offsets`: requests in, records and answers out |
| `coordinator` | the shell: loads and unloads shards, appends their records, keeps their timers |

All but the shell is synchronous and knows no clock: `now_ms` comes in, `actions` come out.
"""
