"""The metadata log's records, and MetadataImage: the state of the cluster after their replay."""
