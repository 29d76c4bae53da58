"""Features of Kafka that this broker does not serve yet, and whose configurations it accepts.

When a feature is implemented, its keys are removed from `unread(...)` in their definitions, each together with
the code that reads it.
"""

from typing import Final

from ottla.config.config_def import NotServed

CLIENT_QUOTAS: Final = NotServed("client quotas")
CONSUMER_GROUPS: Final = NotServed("the consumer rebalance protocol (KIP-848)")
CONTROLLER_QUOTAS: Final = NotServed("controller mutation quotas")
DELEGATION_TOKENS: Final = NotServed("delegation tokens (KIP-48)")
METRICS: Final = NotServed("metrics")
SASL: Final = NotServed("SASL")
SHARE_GROUPS: Final = NotServed("share groups (KIP-932)")
SSL: Final = NotServed("SSL")
STREAMS_GROUPS: Final = NotServed("the streams rebalance protocol (KIP-1071)")
TRANSACTIONS: Final = NotServed("transactions (KIP-98)")
