"""What a controller answers at its own listener: other nodes of the cluster, and admin clients (KIP-919).

    dispatch.py           from a frame to the handler and back
    services.py           what handlers may touch; which requests come from nodes only
    api_versions.py, describe_cluster.py, configs.py   what is answered about this node
                          all else is for quorum and controller; clients' requests come in envelopes

Everything here is the network's side of the controller: no decision is made, and `controller` is not imported.
"""
