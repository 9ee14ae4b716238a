"""`RunConfig`: a whole run as one frozen value, from a config file and dotted overrides.

It says what is computed; `layout` only names the file that says where. The part that changes numbers is declared here
(`mathematics`), so that a resume can be refused with a list of what differs.
"""

import contextlib
import dataclasses
import importlib.util
import linecache
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshtrain.errors import InputError, nearest
from meshtrain.run import schema
from meshtrain.run.arguments import Arguments
