"""Definitions of every configuration but the topics': each file has a subject (the table in config/README.md).

`BROKER_CONFIGS` are those of a properties file; `DYNAMIC_BROKER_CONFIGS` those that AlterConfigs may
set on the resource type BROKER (KIP-226), including a few keys that exist only dynamically.
"""

from ottla.config.config_def import ConfigDef, UpdateMode
from ottla.config.definitions import coordinators, metrics, raft, replication, security, server, storage

__all__ = ["BROKER_CONFIGS", "CLIENT_METRICS_CONFIGS", "DYNAMIC_BROKER_CONFIGS", "GROUP_CONFIGS"]

_SUBJECTS = (server, raft, storage, replication, coordinators, metrics, security)

BROKER_CONFIGS = ConfigDef(key for subject in _SUBJECTS for key in subject.KEYS)

DYNAMIC_BROKER_CONFIGS = ConfigDef(
    [
        *(key for key in BROKER_CONFIGS.values() if key.update_mode is not UpdateMode.READ_ONLY),
        *replication.DYNAMIC_KEYS,
    ]
)

GROUP_CONFIGS = ConfigDef(coordinators.GROUP_KEYS)

CLIENT_METRICS_CONFIGS = ConfigDef(metrics.SUBSCRIPTION_KEYS)
