"""What holds for every simulation."""

import gc

# A story makes hundreds of thousands of objects and keeps most: to look through them for garbage as often as Python does
# by default is a sixth of the time.
gc.set_threshold(100_000, 50, 100)
