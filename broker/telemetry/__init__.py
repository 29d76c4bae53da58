"""Client metrics (KIP-714): which metrics clients are asked for, and those that they have pushed.

    subscriptions.py     a subscription, the clients that it matches, the id of what a client is asked for
    client_metrics.py    the instances of clients: (state, request, now) -> response; no socket, task or clock
    otlp.py              the bytes of a push -> points: a bounded reader of OpenTelemetry's protobuf messages
    series.py            points -> series for /metrics, in a bounded number

`broker/api/k71_get_telemetry_subscriptions.py` and `broker/api/k72_push_telemetry.py` serve the two APIs,
`broker/metrics/client_metrics.py` shows the series.
Source: ClientMetricsManager of Kafka 4.3.1.
"""
