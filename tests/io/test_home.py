"""Paths as people write them."""

from pathlib import Path

import pytest

from meshtrain.errors import InputError
from meshtrain.io.home import expanded


def test_a_home_is_written_out() -> None:
    assert expanded("~/x") == Path.home() / "x"
    assert expanded("a/~") == Path("a/~")


@pytest.mark.parametrize(
    ("path", "message"),
    [("~nobody-of-this-name/x", "no such home"), ("x" * 300, r"x\.\.\. \(300 characters\): no file can be called that"),
     ("a\0b", r"a\?b: .*embedded null")],
)  # fmt: skip
def test_what_no_file_can_be_called_is_refused(path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        expanded(path)
