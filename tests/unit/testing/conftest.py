"""The tests of `project` are those of a project of its own, which test_plugin.py runs."""

collect_ignore = ["project"]
