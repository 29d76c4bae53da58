"""The cluster's nodes: brokers, and the quorum's controllers, as they register."""
