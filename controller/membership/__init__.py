"""The cluster's nodes: brokers with their sessions, and the quorum's controllers, as they register."""
