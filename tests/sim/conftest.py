"""Settings of every simulation: imports and the garbage collector."""

import gc

# A first Fetch waits for the import in turns: only the first story would have them.
import ottla.broker.api.k01_fetch  # noqa: F401

# A story makes hundreds of thousands of objects and keeps most: to look through them for garbage as often as
# Python does by default is a sixth of the time.
gc.set_threshold(100_000, 50, 100)
