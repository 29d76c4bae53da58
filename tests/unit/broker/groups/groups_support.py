"""A group whose clients are all members."""

from ottla.broker.groups.group_state import GroupState
from ottla.stories.groups.scene import Scene


def stable_group(*names: str, **config: int) -> Scene:
    """A stage on which these clients are the members of generation 1; the first one leads."""
    stage = Scene(**config)
    for name in names:
        stage.join(name)
        stage.join(name)
    stage.pass_time(stage.config.initial_rebalance_delay_ms)
    while stage.group.state is not GroupState.COMPLETING_REBALANCE:
        stage.pass_time(stage.config.initial_rebalance_delay_ms)
    stage.sync(names[0], {name: f"part of {name}".encode() for name in names})
    for name in names[1:]:
        stage.sync(name)
    assert stage.group.state is GroupState.STABLE
    stage.events.clear()
    return stage
