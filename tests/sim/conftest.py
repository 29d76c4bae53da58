"""What holds for every simulation."""

import gc

import ottla.broker.api.k01_fetch  # noqa: F401 a first Fetch waits for the import in turns: only the first story would have them

# A story makes hundreds of thousands of objects and keeps most: to look through them for garbage as often as Python does
# by default is a sixth of the time.
gc.set_threshold(100_000, 50, 100)
