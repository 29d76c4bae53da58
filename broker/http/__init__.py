"""The HTTP server of a node (`metrics.listeners`): requests without bodies, on the node's own loop, in bounded memory.

request.py   the head of a request: parsed, bounded
server.py    the listeners, and their connections with a deadline for each of their states
"""
