"""This node's replica of the metadata quorum: what runs Raft, waits for disk and nodes, and notifies listeners."""
