"""Definitions of every configuration of a broker, of groups and of client metrics subscriptions, by topic.

`BROKER_CONFIGS` are those of a properties file; `DYNAMIC_BROKER_CONFIGS` those that AlterConfigs may
set on the resource type BROKER (KIP-226), including a few keys that exist only dynamically.
"""

from ottla.config.config_def import ConfigDef, UpdateMode
from ottla.config.definitions import (
    broker_quotas,
    client_metrics,
    group_resource,
    groups,
    log,
    metrics,
    network,
    raft,
    replication,
    security,
    server,
    share,
    tiered,
    transactions,
)

__all__ = ["BROKER_CONFIGS", "CLIENT_METRICS_CONFIGS", "DYNAMIC_BROKER_CONFIGS", "GROUP_CONFIGS"]

_THEMES = (
    server, raft, network, log, replication, tiered, groups, share, transactions, metrics, security,
)  # fmt: skip

BROKER_CONFIGS = ConfigDef(key for theme in _THEMES for key in theme.KEYS)

DYNAMIC_BROKER_CONFIGS = ConfigDef(
    [
        *(key for key in BROKER_CONFIGS.values() if key.update_mode is not UpdateMode.READ_ONLY),
        *broker_quotas.KEYS,
    ]
)

GROUP_CONFIGS = ConfigDef(group_resource.KEYS)

CLIENT_METRICS_CONFIGS = ConfigDef(client_metrics.KEYS)
