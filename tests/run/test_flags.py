"""The flags of doors beside --config and --layout."""

import pytest

from meshtrain.errors import InputError
from meshtrain.run.flags import NUMBER, SWITCH, TEXT, take

KNOWN = dict(devices=NUMBER, diff=TEXT, json=SWITCH, devices_per_node=NUMBER)


def test_flags_are_taken_out_and_the_rest_is_left_in_order() -> None:
    argv = ["--config", "run.py", "--devices=16,384", "a.py", "--layout.mesh.data", "4", "--json", "--diff", "b.py"]
    assert take(argv, KNOWN) == (
        dict(devices=16384, json=True, diff="b.py"),
        ["a.py"],
        ["--config", "run.py", "--layout.mesh.data", "4"],
    )


def test_a_dash_is_an_underscore() -> None:
    assert take(["--devices-per-node", "8"], KNOWN)[0] == dict(devices_per_node=8)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--devices", "0"], "--devices: '0' is not a whole number of at least 1"),
        (["--devices", "many"], "'many' is not a whole number"),
        (["--devices"], "a value must follow, for example --devices 8"),
        (["--diff", "--json"], "a value must follow, for example --diff FILE"),
        (["--json=yes"], "it takes no value"),
    ],
)
def test_bad_values(argv: list[str], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        take(argv, KNOWN)
