"""What measures or makes with the packages of this project in its own process, instead of with a server's sockets.

Programs of their own: the other modules of bench run some of them as child processes, and import none.
"""
