"""The APIs of a controller's listener, for other nodes of the cluster and for admin clients (KIP-919).

    dispatch.py           from a request frame to the handler, and back to the response
    services.py           the services that handlers use; the requests of nodes only
    handlers.py           requests about this node: its APIs, the cluster's controllers, configurations
                          the quorum and the controller handle all others; clients' requests arrive in envelopes

This is the network layer of the controller: it makes no decision, and does not import `controller`.
Source: ControllerApis of Kafka 4.3.1.
"""
