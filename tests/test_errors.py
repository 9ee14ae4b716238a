"""What errors are made of."""

import pytest

from meshtrain.errors import InputError, first_line, known_keys, one_of, whole_number


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\nno room\nat tensorstore.cc:12")) == "no room"
    assert first_line(RuntimeError()) == "RuntimeError"
    assert len(first_line(OSError("x" * 1000))) == 300


def test_what_a_key_takes() -> None:
    assert one_of("remat", "full", ["none", "full"]) == "full"
    whole_number("accumulate", 1)
    whole_number("first", 0, least=0)
    known_keys("moe", ["top_k"], ["top_k", "mlp"])
    with pytest.raises(InputError, match=r"remat: 'ful' is not one of none, full\. Did you mean 'full'\?"):
        one_of("remat", "ful", ["none", "full"])
    with pytest.raises(InputError, match=r"moe\.topk: there is no such key\. Did you mean 'top_k'\?"):
        known_keys("moe", ["topk"], ["top_k", "mlp"])


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None])
def test_a_whole_number_is_one(value: object) -> None:
    with pytest.raises(InputError, match="accumulate: expected a whole number of at least 1"):
        whole_number("accumulate", value)
