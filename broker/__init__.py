"""The node: network server, API handlers, replicas, coordinators, configuration, command line."""
