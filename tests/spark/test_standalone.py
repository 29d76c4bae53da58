"""`ottla bench run --master spark://...`: the same command on a standalone cluster of one master and two workers."""

from tests.harness.spark import StandaloneCluster
from tests.spark.smoke_support import check_counts, run_smoke, summary_of


def test_a_workload_runs_unchanged_on_a_standalone_cluster(tmp_path):
    with StandaloneCluster(tmp_path / "spark", workers=2) as cluster:
        result = run_smoke(tmp_path / "here", "--start", "ottla", "--master", cluster.url)
        executors = [list(cluster.work_dir(number).glob("app-*/*")) for number in range(2)]
    assert all(executors), "each worker has run an executor"
    check_counts(result, "ottla")
    assert f"--master {cluster.url}" in summary_of(result)["command"]
