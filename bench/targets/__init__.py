"""The clusters under measurement: started here or running already, known by their sockets, processes and folders."""
