"""The RemoteLogManager: copies segments to the remote tier, and deletes them there (KIP-405, "RemoteLogManager")."""
