"""The page of a node for people: what its cluster is doing now, in a browser. Read-only.

    page.py       routes: the files of `ottla.web`, snapshots of views as JSON, and the same snapshots as events
    query.py      the parameters of a view, from untrusted text
    streams.py    a view that is watched: made once for all who watch it, and only while it is watched
    sources.py    where the numbers come from: this node's own state, the metadata, and requests to other brokers
    tally.py      all partitions of the cluster, counted in turns of the loop when the metadata has changed
    overview.py   health with its reasons, brokers and controllers, rates of this node
    topics.py     topics, found and paged; the partitions of one topic with their replicas' logs
    segments.py   one partition in both tiers: segments, leader epochs, copies and their objects
    groups.py     consumer groups with their lag; rates.py what has changed since the last look
    records.py    the records of one partition, by offset, timestamp or key, in both tiers

A view is a function of the sources and a query to a JSON object. Whether the cluster is healthy is decided by
`ottla.broker.reports.health`, as for `ottla cluster status`. Nothing is computed, sampled or kept while no view
is watched.
"""
