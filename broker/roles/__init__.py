"""The roles of a node, as `process.roles` combines them, and their common parts.

    directories.py   the log directories: checked for their owner, locked while the process runs
    quorum.py        this node's replica of the metadata log: voter or observer; Kafka's SharedServer
    controller.py    the controller, and its listener
    broker.py        the broker: logs, replicas, coordinators, and listeners for clients

`broker/node.py` starts and stops them in the right order. Only it and these modules import both `controller`
and the rest of `broker`: elsewhere the two communicate by messages.
"""
