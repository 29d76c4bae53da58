"""Consumer groups of the classic protocol, and the offsets that groups commit.

| module | what |
|---|---|
| `group` | a group: its state, members and rules of membership; opens with the transitions |
| `joining`, `syncing`, `leaving`, `sessions` | what each request, and time, does to a group |
| `rebalance` | the join phase that all of them may start or end |
| `storing` | what follows when a generation is in the log, or could not be written |
| `offsets` | committed offsets: look-up, expiry, open transactions |
| `shard` | the groups of one partition of `__consumer_offsets`: requests in, records and answers out |
| `loader`, `shard_runner`, `timers` | the shell of a shard: replays it, appends its records, keeps its timers |
| `coordinator` | the shell of all: follows the leadership, finds a group's shard, turns errors into answers |

All but the shells is synchronous and knows no clock: `now_ms` comes in, `actions` come out.
"""
