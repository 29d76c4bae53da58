"""Options that `ottla bench run` refuses before anything is started."""

import pytest

from ottla.bench.runs.options import CannotRun, check_out


def test_a_folder_for_results_may_not_exist_yet(tmp_path):
    check_out(tmp_path / "a/b")
    assert list(tmp_path.iterdir()) == []
    check_out(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_could_not_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotRun, match=r"--out .*/file/results cannot be written \(Not a directory\)"):
        check_out(tmp_path / "file/results")
