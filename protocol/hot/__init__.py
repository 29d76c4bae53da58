"""Hot codecs: Produce and Fetch, the APIs with tens of thousands of requests a second.

They are the compiled codecs of `ottla.protocol.codec`, whose code for a version is much like `struct` code written by
hand: a Produce parser written by hand, for one partition and without checks of tags and counts, saved only
0.8 of 2.5 microseconds. What is special here: record bytes are never copied. A request's are slices of its
frame, a response's go to the socket as they are.
"""
