"""The controller: the cluster's metadata log and the decisions that are written to it.

Decisions are functions `(state, request, ...) -> Result(records, response)`; only `ClusterState.replay` changes
the state, with records. `node.Controller` is the shell around them (Kafka's QuorumController). README.md is the
overview.
"""
