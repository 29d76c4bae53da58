"""The metadata quorum: Raft machines, their logs and the messages between them."""
