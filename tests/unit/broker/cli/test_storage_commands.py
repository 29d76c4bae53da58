"""`ottla format` and `ottla info` on directories that cannot be used: sentences, and no traceback."""

from click.testing import CliRunner

from ottla.command_line import main


def node(tmp_path):
    """A controller whose directory has a folder where its file of properties should be."""
    (tmp_path / "data/meta.properties").mkdir(parents=True)
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"process.roles=controller\nnode.id=1\nlisteners=CONTROLLER://127.0.0.1:9093\nlog.dirs={tmp_path}/data\n"
        "controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:9093\n"
    )
    return str(properties)


def test_info_names_a_file_that_cannot_be_read(tmp_path):
    done = CliRunner().invoke(main, ["info", "-c", node(tmp_path)])
    assert done.exit_code == 1
    assert f"Error loading {tmp_path}/data/meta.properties" in done.output


def test_format_prints_what_the_disk_refuses(tmp_path):
    done = CliRunner().invoke(main, ["format", "-t", "AAAAAAAAAAAAAAAAAAAAAw", "-s", "-c", node(tmp_path)])
    assert done.exit_code == 1
    assert done.output == "Error: A file of the log directories cannot be used: Is a directory\n"
