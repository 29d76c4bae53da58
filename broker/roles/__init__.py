"""The halves of a node, as `process.roles` puts them together, and what both stand on.

    directories.py   the log directories: whose they are, locked while the process lives
    quorum.py        this node's replica of the metadata log: voter or observer; Kafka's SharedServer
    controller.py    the controller, and its listener
    broker.py        the broker: logs, replicas, coordinators, and listeners for clients

`broker/node.py` starts and stops them in the right order. These modules, and no others, know both `controller`
and the rest of `broker`: elsewhere the two talk in messages.
"""
