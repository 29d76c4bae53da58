"""KRaft: the state machine without I/O, and its driver. Start with `machine`: it has the diagram and the map."""
