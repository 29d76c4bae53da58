"""Programs that measure or create with the packages of this project in their own process.

They do not use a server's sockets. The other modules of bench run some of them as child processes, and import
none.
"""
