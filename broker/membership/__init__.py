"""This broker as a member of the cluster: registration, heartbeats, and its channel to the active controller."""
