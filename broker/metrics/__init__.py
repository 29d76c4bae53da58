"""Metrics of a node, which its HTTP server shows (`metrics.listeners`).

    names.py            Kafka's MBean -> Prometheus' name and type: one rule
    families.py         the row of a table: an MBean, what it means, and how its value is read
    collector.py        all rows of this node, as a collector of prometheus-client
    end_offsets.py          the ends of partitions of which this broker has no replica, asked of their leaders
    *_metrics.py        the tables: the node, its replicas, groups, Raft and controller, remote tier, clients
    dashboards/             for Grafana, and rules for Prometheus: `ottla dashboards` writes them to a folder
    pages.py            /metrics as Prometheus' and OpenMetrics' text

Nothing is measured here: the parts of a node count with plain integers, and the tables read these
when a page is requested. docs/METRICS.md lists all metrics.
"""
