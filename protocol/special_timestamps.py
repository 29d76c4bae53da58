"""Special timestamps of ListOffsets (KIP-79, KIP-405, KIP-734, KIP-1005, KIP-1023): names of offsets instead of times.

Source: the constants of Kafka's ListOffsetsRequest.
"""

from typing import Final

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
