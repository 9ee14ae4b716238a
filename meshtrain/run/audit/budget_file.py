"""Budget files (`--budget FILE`): plain Python with `get_config()`, as runs and layouts are."""

from meshtrain.audit.budget import Budget
from meshtrain.errors import InputError
from meshtrain.run import config_file


def read_budget(path: str) -> Budget:
    """The budget of a file. InputError names the file, the line and a form that is right."""
    file = config_file.read(path, "--budget")
    try:
        return Budget.parse(file.values)
    except InputError as error:
        raise InputError(f"--budget={path}: {error}") from None
