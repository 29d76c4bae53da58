"""`ottla topics`, `groups`, `configs` and `cluster status`: administration without Java and without a client library.

    topics_command.py ---> topics.py (requests) ----+
    groups_command.py ---> groups.py (requests) ----+--> broker/cluster_client/
    configs_command.py --> configs.py (requests) ---+
    status_command.py ---> status.py (requests) ----+

The output is made by pure functions of the responses: topic_rows.py, group_rows.py, config_rows.py, and
`broker/reports/`.
"""
