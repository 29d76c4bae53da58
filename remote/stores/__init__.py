"""The storage managers that come with Ottla: one layout of names (`object_storage.py`), three stores.

local_directory.py   LocalDirectory: a directory, as Kafka's LocalTieredStorage
s3.py                S3Storage: Amazon S3 and compatible stores, by boto3
minio.py             MinioStorage: MinIO and compatible stores, by the minio client
"""
