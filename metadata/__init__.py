"""The cluster's metadata: the records of the metadata log, and MetadataImage, the state after their replay."""
