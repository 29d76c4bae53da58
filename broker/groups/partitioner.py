"""Which partition of the offsets topic keeps a group: the same as Kafka's, or its folders would not fit."""


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, in 32 bits with sign.

    >>> java_hash("group"), java_hash("consumer-group-of-some-length")
    (98629247, -1733497490)
    """
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8) + data[at + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_for(group_id: str, partition_count: int) -> int:
    """The partition whose leader coordinates this group. Java's smallest int has no absolute value: 0."""
    value = java_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
