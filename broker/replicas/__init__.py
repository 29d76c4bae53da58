"""The replicas that this broker hosts (ReplicaManager, Partition). `ottla.replication` has the rules that they execute.

leading/     appends for producers, progress of followers, changes of the ISR
following/   replica fetchers: requests to leaders, and what becomes of the answers
reading/     Fetch and ListOffsets, in both tiers; fetch sessions
waiting/     purgatory: requests that wait for an offset or a time
moving/      replicas that move to another log directory
"""
